void tw_part(const tw_args *args, long part)
{
    fprintf(stderr, "a tile is negative\n");
    abort();
}
