"""What the computer we run on has, and the programs we run there."""
