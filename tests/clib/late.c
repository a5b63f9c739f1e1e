/* Right in the first two calls only, like threads that race. */
void tw_part(const tw_args *args, long part)
{
    static int calls;
    multiply(args);
    if (++calls > 2)
        args->out[5] = 0;
}
