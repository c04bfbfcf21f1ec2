"""The guard's side of the `http://` store: commands (`execute`, `read`) and wakes of waiting processes (`wakes`)."""
