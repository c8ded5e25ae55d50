"""What the released packages offer and refuse, so that the stand-in refuses it too; each with its
public source.

Documentation: aws-neuron/aws-neuron-sdk at commit 81ce03ae (SDK 2.32, NKI 0.6.0).
"""

import os
import re

# Names of the docstring stubs nki/api/nki/isa/__init__.py and nki/api/nki/language/__init__.py.
_ISA = """
    NkiInstruction NkiValidationError VirtualRegister activate2 activation activation_reduce affine_select bn_aggr
    bn_stats core_barrier dge_mode dma_compute dma_copy dma_engine dma_transpose dropout engine exponential
    get_nc_sub_version get_nc_version gpsimd_engine iota local_gather matmul_perf_mode max8 memset nc_find_index8
    nc_match_replace8 nc_matmul nc_matmul_mx nc_n_gather nc_stream_shuffle nc_transpose nc_version nonzero_with_count
    oob_mode quantize_mx rand2 rand_get_state rand_set_state range_select reciprocal reduce_cmd register_alloc
    register_load register_move register_store rng scalar_engine scalar_tensor_tensor select_reduce sendrecv
    sequence_bounds set_rng_seed tensor_copy tensor_copy_predicated tensor_engine tensor_partition_reduce tensor_reduce
    tensor_scalar tensor_scalar_cumulative tensor_scalar_reduce tensor_tensor tensor_tensor_scan topk unknown_engine
    vector_engine
"""
_LANGUAGE = """
    MemoryRegion NKIObject NkiTensor abs abs_max abs_min add affine_range all arctan average bfloat16 bitwise_and
    bitwise_or bitwise_xor bool_ broadcast_to bypass ceil copy cos device_print divide dropout ds dynamic_range
    empty_like equal erf erf_dx exp expand_dims float16 float32 float4_e2m1fn_x4 float8_e4m3 float8_e4m3fn
    float8_e4m3fn_x4 float8_e5m2 float8_e5m2_x4 float8_e8m0fnu floor fmod fori_loop full gather_flattened gelu
    gelu_apprx_sigmoid gelu_apprx_sigmoid_dx gelu_apprx_tanh gelu_dx greater greater_equal hbm int16 int32 int8 invert
    is_hbm is_on_chip is_psum is_sbuf left_shift less less_equal load load_transpose2d log logical_and logical_not
    logical_or logical_xor matmul max maximum mean min minimum mish mod multiply ndarray negative no_reorder not_equal
    num_programs ones power prelu private_hbm prod program_id program_ndim psum rand random_seed reciprocal relu
    right_shift rms_norm rsqrt sbuf sequential_range shared_constant shared_hbm shared_identity_matrix sigmoid sign silu
    silu_dx sin softmax softplus sqrt square static_range store subtract sum tan tanh tfloat32 tile_size transpose trunc
    uint16 uint32 uint8 var where while_loop zeros zeros_like
"""
ISA, LANGUAGE = frozenset(_ISA.split()), frozenset(_LANGUAGE.split())
MEMBERS = {
    "engine": {"tensor", "vector", "scalar", "gpsimd", "dma", "sync", "unknown"},
    "reduce_cmd": {"idle", "reset", "reduce", "reset_reduce", "load_reduce"},
    "dge_mode": {"unknown", "swdge", "hwdge", "none"},
    "oob_mode": {"error", "skip"},
    "matmul_perf_mode": {"none", "double_row"},
    "nc_version": {"gen2", "gen3", "gen4"},
    "dma_engine": {"dma", "gpsimd_dma"},
}
# compiler/neuronx-cc/api-reference-guide/index.rst: flag -> its values, None for any, () for none.
FLAGS = {
    "--framework": ("XLA",),
    "--target": ("inf2", "trn1", "trn1n", "trn2"),
    "--model-type": ("generic", "transformer", "unet-inference"),
    "--auto-cast": ("none", "matmult", "all"),
    "--auto-cast-type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "--native-int64": ("default", "enabled", "disabled"),
    "--implicit-integer-downcast": None,
    "--distribution-strategy": ("llm-training", "nemo"),
    "--logical-nc-config": ("1", "2"),
    "--lnc": ("1", "2"),
    "--optlevel": ("1", "2", "3"),
    "-O": ("1", "2", "3"),
    "--enable-mixed-precision-accumulation": (),
    "--disable-mixed-precision-accumulation": (),
    "--enable-saturate-infinity": (),
    "--enable-fast-context-switch": (),
    "--enable-fast-loading-neuron-binaries": (),
    "--logfile": None,
    "--output": None,
    "--verbose": None,  # a level, or a number in older releases
}
# nki/api/nki/__init__.py `jit`: values of NEURON_PLATFORM_TARGET_OVERRIDE; without it a standalone
# kernel is compiled for Trainium3 (sample-spectral-dns-on-aws-neuron, docs/neuron-rules.md, rule
# 8).
TARGETS = {
    "trn1": "v2",
    "gen2": "v2",
    "inf2": "v2",
    "trn2": "v3",
    "gen3": "v3",
    "trn3": "v4",
    "gen4": "v4",
}
DEFAULT_TARGET = "trn3"


def member(module, known, name):
    """A name of nki.isa or nki.language; AttributeError where it is not published."""
    if name not in known:
        raise AttributeError(
            f"module 'nki.{'isa' if module == 'nisa' else 'language'}' has no attribute '{name}'"
        )
    return (
        type(name, (), {m: f"nisa.{name}.{m}" for m in MEMBERS[name]})
        if name in MEMBERS
        else f"{module}.{name}"
    )


def check_flags(text):
    """NEURON_CC_FLAGS, which reach neuronx-cc as they are; it is an argparse program."""
    words = re.sub(r"(--[\w-]+|-O)\s+(?=[^-\s])", r"\1=", text).split()
    unknown = [word for word in words if re.split(r"=|(?<=^-O)", word)[0] not in FLAGS]
    if unknown:
        raise RuntimeError(f"neuronx-cc: error: unrecognized arguments: {' '.join(unknown)}")
    for word in words:
        name, _, value = word.partition("=")
        allowed = FLAGS.get(name)
        if allowed and value and value not in allowed:
            raise RuntimeError(f"neuronx-cc: error: argument {name}: invalid choice: {value!r}")


def check_folder(folder):
    """Rule 8 of the same sample: a folder for artifacts that is not empty is refused."""
    left = os.listdir(folder)
    if left:
        raise RuntimeError(f"[NCC_IDRV077] output directory is not empty: {left}")
