"""Networks that classify images: trained, validated every epoch, timed in inference."""
