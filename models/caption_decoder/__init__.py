"""The merge decoder that turns image features into captions, in every framework."""
