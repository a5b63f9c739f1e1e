/* Overwrites its input, which the next candidate reads too. */
void tw_part(const tw_args *args, long part)
{
    multiply(args);
    ((volatile float *)args->in[0])[0] = 1;
}
