# ruff: noqa: E501
"""SQLite exports as nsys writes them, in several schema versions, with the right answer beside.

Columns after NVIDIA's "SQLite Schema Reference" of each release. The answer is computed here by
counting covered nanoseconds, not by the method under test.
"""

import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

# version: columns a kernel row has; the rest of a row is zeros
_COMMON = "start end deviceId contextId streamId correlationId globalPid demangledName shortName"
_SHAPE = "registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory"
_SHAPE += " dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId"
VERSIONS = {
    "2023.1": f"{_COMMON} launchType cacheConfig {_SHAPE} sharedMemoryExecuted",
    "2024.3": f"{_COMMON} mangledName launchType cacheConfig {_SHAPE} sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig",
    "2026.2": f"{_COMMON} greenContextId mangledName launchType cacheConfig {_SHAPE} "
    "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
}
# Demangled name, as nsys or Kineto spells it -> short name and family. From traces of Hopper GPUs
# in public issues and reports; Triton's are functions of vLLM 0.32. They are whole, to be searched.
KERNELS = {
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<128>, cute::C<128> >, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, false, false, true, true, false, false, true, true, true, true, false, cutlass::bfloat16_t, 1>, flash::CollectiveEpilogueFwd<cute::tuple<cute::C<64>, cute::C<128>, cute::C<128> >, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cutlass::bfloat16_t, cutlass::arch::Sm90, 128, true, true, true, false, 1>, flash::VarlenDynamicPersistentTileScheduler<64, 128, 128, 128, true, true, true, true, false, true> > > >": (
        "device_kernel",
        "attention",
    ),
    "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 5, 256, 1, false, true, cutlass::bfloat16_t, float, cutlass::arch::Sm90> >(flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 5, 256, 1, false, true, cutlass::bfloat16_t, float, cutlass::arch::Sm90>::Params)": (
        "device_kernel",
        "attention",
    ),
    "flash::prepare_varlen_num_blocks_kernel(int, int, int, int const*, int const*, int const*, int const*, int const*, int const*, int, int, int, int, int, cutlass::FastDivmod, cutlass::FastDivmod, int*, int*, bool)": (
        "prepare_varlen_num_blocks_kernel",
        "attention",
    ),
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, long const*, long, long, long, long, long, int, int, int, float const*, float const*, int)": (
        "reshape_and_cache_flash_kernel",
        "attention",
    ),
    "nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT": (
        "nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT",
        "gemm",
    ),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas": (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "gemm",
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(T1::Params)": (
        "Kernel2",
        "gemm",
    ),
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int,int,int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<9, cute::tuple<cute::C<1>,cute::C<1>,cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedPingpong>, cute::tuple<cute::C<128>,cute::C<64>,cute::C<64> >, cutlass::bfloat16_t, cute::TiledMMA<cute::MMA_Atom<cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS> >, cute::SM90_TMA_LOAD, cute::ComposedLayout<cute::Swizzle<3,4,3> > > > >": (
        "device_kernel",
        "gemm",
    ),
    "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, (bool)0, (bool)1, (bool)1, (bool)0, (int)7, (bool)0, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<const __nv_bfloat16>, cublasGemvTensorStridedBatched<const __nv_bfloat16>, cublasGemvTensorStridedBatched<__nv_bfloat16>, float>>(T13)": (
        "kernel",
        "gemm",
    ),
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float> >(cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float>, float, float)": (
        "gemv2T_kernel_val",
        "gemm",
    ),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false, float, __nv_bfloat16, __nv_bfloat16, true, true, false, false>(cublasLt::cublasSplitKParams<float>, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float const*, float const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, void*, long, float*, int*, float*, float*, float const*, float const*, float const*, float const*, float const*)": (
        "splitKreduce_kernel",
        "gemm",
    ),
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, (int)4, (int)4>>(T3)": (
        "reduce_kernel",
        "sampling",
    ),
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxOps<float>, unsigned int, float, 4, 4> >": (
        "reduce_kernel",
        "sampling",
    ),
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4, 4>)": (
        "reduce_kernel",
        "other",
    ),
    "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, at::native::<unnamed>::LogSoftMaxForwardEpilogue>(T4 *, const T2 *, int)": (
        "cunn_SoftMaxForward",
        "sampling",
    ),
    "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<long, at_cuda_detail::cub::NullType, unsigned long long>::Policy900, (bool)0, long, at_cuda_detail::cub::NullType, unsigned long long, int, int, at_cuda_detail::cub::detail::identity_decomposer_t>(T7 *, T7 *, T5 *, const T5 *, T3 *, const T3 *, T4 *, const T4 *, T6, int, int, T8)": (
        "DeviceRadixSortOnesweepKernel",
        "sampling",
    ),
    "void at_cuda_detail::cub::DeviceScanInitKernel<at_cuda_detail::cub::ScanTileState<long, (bool)1>>(T1, int)": (
        "DeviceScanInitKernel",
        "sampling",
    ),
    "void at_cuda_detail::cub::DeviceCompactInitKernel<at_cuda_detail::cub::ScanTileState<int, (bool)1>, int *>(T1, int, T2)": (
        "DeviceCompactInitKernel",
        "other",
    ),
    "void at::native::mbtopk::gatherTopK<float, unsigned int, 2>(at::cuda::detail::TensorInfo<float const, unsigned int>, unsigned int, unsigned int, bool, unsigned int, unsigned int, at::cuda::detail::TensorInfo<float, unsigned int>, unsigned int, at::cuda::detail::TensorInfo<long, unsigned int>, unsigned int, unsigned int, unsigned int, float*, unsigned int*, unsigned int*, unsigned int)": (
        "gatherTopK",
        "sampling",
    ),
    "rejection_greedy_sample_kernel": ("rejection_greedy_sample_kernel", "sampling"),
    "expand_kernel": ("expand_kernel", "sampling"),
    "_gumbel_sample_kernel": ("_gumbel_sample_kernel", "sampling"),
    "_compute_local_logits_stats_kernel": ("_compute_local_logits_stats_kernel", "sampling"),
    "_rejection_kernel": ("_rejection_kernel", "sampling"),
    "_topk_topp_kernel": ("_topk_topp_kernel", "sampling"),
    "void vllm::rms_norm_kernel<c10::BFloat16, (int)8, (int)2, (bool)1>(T1 *, const T1 *, long, long, long, long, long, const T1 *, long, float, int, int)": (
        "rms_norm_kernel",
        "norm",
    ),
    "std::enable_if<((8)==(0))||(!vllm::_typeConvert<c10::BFloat16>::exists), void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8, true>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 const*, float, int, int, long)": (
        "fused_add_rms_norm_kernel",
        "norm",
    ),
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2": (
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2",
        "norm",
    ),
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)": (
        "unrolled_elementwise_kernel",
        "copy",
    ),
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<int>, std::array<char *, (unsigned long)1>>(int, T2, T3)": (
        "vectorized_elementwise_kernel",
        "copy",
    ),
    "void at::native::index_elementwise_kernel<(int)128, (int)4, void at::native::gpu_index_kernel<void at::native::index_put_kernel_impl<at::native::OpaqueType<(int)4>>(at::TensorIterator &, c10::ArrayRef<long>, c10::ArrayRef<long>)::[lambda(char *, const char *, long) (instance 1)]>(at::TensorIteratorBase &, c10::ArrayRef<long>, c10::ArrayRef<long>, const T1 &, bool)::[lambda(int) (instance 1)]>(long, T3)": (
        "index_elementwise_kernel",
        "copy",
    ),
    "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long, long, bool)": (
        "vectorized_gather_kernel",
        "copy",
    ),
    "void at::native::<unnamed>::CatArrayBatchedCopy_aligned16_contig<at::native::<unnamed>::OpaqueType<(unsigned int)4>, unsigned int, (int)2, (int)128, (int)1>(T1 *, at::native::<unnamed>::CatArrInputTensorMetadata<T1, T2, T4, T5>, at::native::<unnamed>::TensorSizeStride<T2, (unsigned int)4>, int, T2)": (
        "CatArrayBatchedCopy_aligned16_contig",
        "copy",
    ),
    "_compute_slot_mappings_kernel": ("_compute_slot_mappings_kernel", "copy"),
    "void vllm::rotary_embedding_kernel<c10::BFloat16, c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, c10::BFloat16 const*, int, long, long, long, int, int, int, long, bool)": (
        "rotary_embedding_kernel",
        "other",
    ),
    "void vllm::act_and_mul_kernel<c10::BFloat16, __nv_bfloat162, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), &(__nv_bfloat162 vllm::packed_silu_kernel<__nv_bfloat162>(__nv_bfloat162 const&)), true, true, false>": (
        "act_and_mul_kernel",
        "other",
    ),
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>>(int, T2, T3)": (
        "vectorized_elementwise_kernel",
        "other",
    ),
    "_ngram_scan_kernel": ("_ngram_scan_kernel", "other"),
    "_post_update_kernel": ("_post_update_kernel", "other"),
}
_MEMORY = "start end deviceId contextId streamId correlationId globalPid bytes copyKind"


@dataclass
class Answer:
    busy_ns: int = 0
    sum_ns: int = 0
    events: int = 0
    family_ns: dict[str, int] = field(default_factory=dict)


def write(
    path: Path,
    version: str = "2026.2",
    steps: int = 4,
    rows: int = 1,
    devices: int = 1,
    processes: int = 1,
    overlap: float = 0.2,
    shuffled: bool = False,
    per_step: int = 20,
    marks: str | None = "text",
    seed: int = 0,
) -> Answer:
    """An export of a prefill and `steps` decode steps, and what is in it.

    Args:
        overlap: share of kernels that start before the one before them has ended.
        shuffled: rows out of time order, as after a merge of streams.
        marks: how vLLM's marks are stored: `text`, `textId`, or not at all.
    """
    rng = random.Random(seed)
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    spelled = dict.fromkeys([*KERNELS, *(short for short, _ in KERNELS.values())])
    names = {n: 1000 + i for i, n in enumerate(spelled)}
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, n) for n, i in names.items()])
    every = list(KERNELS)
    columns = VERSIONS[version].split()
    _table(db, "CUPTI_ACTIVITY_KIND_KERNEL", columns)
    _table(db, "CUPTI_ACTIVITY_KIND_MEMCPY", _MEMORY.split())
    answer, spans, kernels, copies = Answer(), {}, [], []
    clock = dict.fromkeys(range(devices), 10**15)
    marked = []
    for step in range(steps + 1):
        begin = max(clock.values())
        for d in range(devices):
            clock[d] = begin
            for i in range(per_step):
                name = rng.choice(every)
                short, family = KERNELS[name]
                start = clock[d] + rng.randrange(0, 900)
                if rng.random() < overlap:
                    start = clock[d] - rng.randrange(1, 1500)
                end = start + rng.randrange(1000, 9000)
                clock[d] = max(end, clock[d])
                pid = 2**48 + 7 + i % processes
                given = {"start": start, "end": end, "deviceId": d, "globalPid": pid}
                given |= {"shortName": names[short], "demangledName": names[name]}
                given |= {"graphNodeId": 7 + i}
                kernels.append(tuple(given.get(c, 0) for c in columns))
                spans.setdefault(d, []).append((start, end))
                _add(answer, family, end - start)
            start = clock[d]
            copies.append((start, start + 500, d, 1, 7, 0, 2**48 + 7, 64, 2))
            spans[d].append((start, start + 500))
            _add(answer, "copy", 500)
            clock[d] = start + 500
        phase = f"0(0)_generation_1({rows})" if step else "1(256)_generation_0(0)"
        marked.append((begin, max(clock.values()), f"execute_context_{phase}"))
    kernels.sort()
    if shuffled:
        rng.shuffle(kernels)
    for table, made in (("KERNEL", kernels), ("MEMCPY", copies)):
        blanks = ", ".join("?" * len(made[0]))
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({blanks})", made)
    if marks:
        _table(db, "NVTX_EVENTS", ["start", "end", "eventType", "text", "textId"])
        for i, (start, end, mark) in enumerate(marked):
            where = (mark, None) if marks == "text" else (None, 5000 + i)
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?)", (start, end, *where))
            if marks == "textId":
                db.execute("INSERT INTO StringIds VALUES (?, ?)", (5000 + i, mark))
    db.commit()
    db.close()
    answer.busy_ns = sum(map(covered, spans.values()))
    return answer


def covered(spans: list[tuple[int, int]]) -> int:
    """Nanoseconds inside at least one span, from the count of open spans at every edge."""
    edges = sorted([(s, 1) for s, _ in spans] + [(e, -1) for _, e in spans])
    total, open_spans, since = 0, 0, 0
    for at, change in edges:
        if open_spans:
            total += at - since
        open_spans, since = open_spans + change, at
    return total


def _add(answer: Answer, family: str, ns: int) -> None:
    answer.sum_ns += ns
    answer.events += 1
    answer.family_ns[family] = answer.family_ns.get(family, 0) + ns


def _table(db: sqlite3.Connection, name: str, columns: list[str]) -> None:
    made = ", ".join(f"{c} {'TEXT' if c == 'text' else 'INTEGER'}" for c in columns)
    db.execute(f"CREATE TABLE {name} ({made})")
