"""What `http://` stores of other processes say to a guard: commands (`execute`, `read`) and whom to wake (`wakes`)."""
