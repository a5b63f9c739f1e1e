/* Lacks part of the interface. */
void tw_other(const tw_args *args, long part)
{
    multiply(args);
}
