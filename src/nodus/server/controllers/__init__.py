"""Controllers: level-triggered loops that move objects towards their spec. One file a kind; the loop is `runtime`."""
