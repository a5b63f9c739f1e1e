/* Writes one page past its output. */
void tw_part(const tw_args *args, long part)
{
    multiply(args);
    ((volatile float *)args->out)[1024] = 1;
}
