"""Networks that tell classes of images: trained, validated every epoch, asked."""
