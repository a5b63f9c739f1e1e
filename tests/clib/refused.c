#error a tile does not fit
