"""What the labs measure with: `from attncourse import lab`. A name is loaded at its first use.

timing        a stopwatch for CPU and GPU          meters    bytes and operations, no clock
virtual_gpu   a GPU whose true times are known     backends  which attention kernel ran
roofline      what a machine could do at best      receipts  a lab's results, to hand in
fits          how a time grows with n              audit     what those results really say
"""

from importlib import import_module

_NAMES = {
    "timing": "Sample compare is_out_of_memory machine measure start threads",
    "virtual_gpu": "Hardware VirtualGPU",
    "stopwatches": "SCENARIOS accepts explain panel plot_panels try_out",
    "famous": "FAMOUS",
    "meters": "allocator_peak count saved_for_backward trace",
    "backends": "backend_of default_backend may_run mha_cases sdpa_call sees_future which_backend",
    "roofline": "attention_flops datasheet measured_ceilings naive_bytes plot_roofline published",
    "fits": "fit_exponent",
    "receipts": "ReceiptError Recorder decode encode load",
    "audit": "",  # its function has the module's name: `lab.audit.audit(record)`
}
_FILES = {name: file for file, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_NAMES, *_FILES])


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return import_module(f"{__name__}.{name}")
    if name not in _FILES:
        raise AttributeError(f"{__name__} has no {name!r}")
    return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
