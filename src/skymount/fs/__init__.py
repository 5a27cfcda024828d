"""The mounted tree: names, inodes and operations; ``fuse`` alone knows the kernel's side."""
