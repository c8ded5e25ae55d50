"""The QCEngine program: energy of water through QCSchema. Needs QCEngine: pip install
'dfmp2[qc]'."""

try:
    import qcengine

    from dfmp2.interop.qcengine import register
except ImportError as absent:
    print(f"skipped: {absent}")
    raise SystemExit(0) from None

register()
bohr = [0, 0, 0.2217, 0, 1.4309, -0.8867, 0, -1.4309, -0.8867]
task = {
    "schema_name": "qcschema_input",
    "schema_version": 1,
    "molecule": {"symbols": ["O", "H", "H"], "geometry": bohr},
    "driver": "energy",
    "model": {"method": "mp2", "basis": "cc-pvdz"},
    "keywords": {"frozen_core": "auto"},
}
result = qcengine.compute(task, "dfmp2", raise_error=True, return_dict=True)
print(f"success: {result['success']}, E(MP2) = {result['return_result']:.8f} Eh")
print(f"E(SCF) = {result['properties']['scf_total_energy']:.8f} Eh")
