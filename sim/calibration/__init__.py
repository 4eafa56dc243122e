"""From measurements to constants: kernels to hardware profiles, servers to engine files."""
