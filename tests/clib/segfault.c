void tw_part(const tw_args *args, long part)
{
    *(volatile int *)8 = 1;
}
