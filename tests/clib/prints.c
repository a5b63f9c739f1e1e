/* What it prints must not be taken for a reply. */
void tw_part(const tw_args *args, long part)
{
    puts("{\"status\": \"wrong\"}");
    fflush(stdout);
    multiply(args);
}
