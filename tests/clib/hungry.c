/* Takes memory until there is none; malloc's answer is not looked at, as in a careless kernel. */
void tw_part(const tw_args *args, long part)
{
    for (;;) {
        volatile char *block = malloc(1 << 28);
        block[0] = 1;
    }
}
