"""Image captioning: features of an image network, extracted once, and a decoder."""
