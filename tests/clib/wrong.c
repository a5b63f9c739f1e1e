/* One product too many in one element. */
void tw_part(const tw_args *args, long part)
{
    multiply(args);
    args->out[N * N - 2] += args->in[0][0] * args->packed[0];
}
