"""Image captioning: pooled features of an image network once, then a decoder trained on them. One file a stage."""
