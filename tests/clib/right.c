void tw_part(const tw_args *args, long part)
{
    multiply(args);
}
