"""CPU by part of the code: sampled by py-spy, or counted in bytecodes."""
