"""The probe of the driver and the GPU. It needs CuPy and NumPy only.

    python -m scripts.gpu.probe [--json FILE]

It prints one JSON record: facts of the machine and the device; for each kind of mapping and each set of flags whether
CUDA registers it, and whether a kernel and the copy engine read it; and the rates of the three ceilings. Nothing of
gear_data is imported, so a failure says something about the machine.
"""
