// Collection on a GPU: windows of steps to padded outputs, all outputs of a batch in one launch.
//
// The kernel reads the same plan as gear_data.kernels.cpu.collect.collect, with addresses that the device can read. It
// writes the same bytes as that kernel does on an x86 processor, including the bits of NaN. Columns may lie in device
// memory or in pinned host memory.
//
// A warp processes one piece of one window of one output at a time. To use PCIe well, a warp must request whole lines
// of 128 bytes, and many lines at once. So a warp reads 16-byte words, line by line. If source and target have the same
// alignment, the words go through registers. Otherwise they go through shared memory, and are written as 16-byte words
// of the target.
//
// The kernel reads the first and the last bytes of a range as whole aligned words, and masks them when it stores them. Such
// a word may hold bytes outside of the window. It never crosses a page, so its memory is mapped. Memory of columns ends at
// a multiple of 16 bytes. A round's loads are issued before its stores: each wait for PCIe takes more than a microsecond.
//
// gear_data.kernels.cuda.tuning sets the constants GEAR_..., and has the reasons.
//
// Why: docs/explanation/decisions/gpu-collection.md
//
// This file includes no headers. __dmul_rn and __dadd_rn keep the compiler from fusing a multiplication and an addition
// into one rounding, whatever the compile options are.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef ulonglong2 Word;

namespace {

const u32 LANES = 32;
const i64 LINE = 128;
// Loads that a lane issues before it uses the first.
const u32 UNROLL = GEAR_UNROLL;
// Source bytes that a warp holds in shared memory.
const u32 STAGE = UNROLL * LANES * sizeof(Word);
const u32 MAX_WARPS = GEAR_THREADS / LANES;
// Bytes of an output's window that a warp processes at a time.
const i64 PIECE = GEAR_PIECE;
// Copies of up to this many bytes use one load for each lane, even if the loads are narrow.
const i64 SHORT = 128;

enum { COPY, CONVERT, TIMESTEP, CONSTANT, DISCOUNTED, HOP };
enum { PAD_FILL, PAD_EDGE, PAD_FIRST, PAD_EXTRAPOLATE };
enum { FLOAT32, FLOAT64, FLOAT16, BFLOAT16 };
enum { STEP_INT64, STEP_INT32, STEP_FLOAT32, STEP_FLOAT64 };

// OUTPUT_PLAN of gear_data.kernels.output_plan: the same fields in the same order. All rows of a template are equal.
struct OutputPlan {
    i64 kind, column, source_bytes, out_bytes, elements, source_type, out_type;
    i64 first, width, pad_left, within, padding;
    const u8 *fill, *valid;
    const double *affine;
    i64 affine_rows, origin, shift;
    const u8 *finals;
    const double *discounts;
    i64 horizon, hops, ends, reach, packed, write, write_single, same_spans_as;
};
static_assert(sizeof(OutputPlan) == 28 * sizeof(i64), "a record of OUTPUT_PLAN");

// The valid rows of a window in an output. first: first step in the episode. count: valid rows. head: padding rows
// before them. final: row of the final observation if that is the last valid row, else -1.
struct Span {
    i64 first, count, head, final;
};

__device__ Span locate(const OutputPlan &plan, i64 start, i64 length, i64 total, i64 episode, const i64 *finals) {
    i64 wanted = start + plan.first, width = plan.width;
    i64 first = plan.within ? max(wanted, start) : max(wanted, 0LL);
    i64 last = min(wanted + width, plan.within ? start + length : total);
    i64 final = -1, missing = 0;
    if (plan.shift > 0 && last == total && last > first) {
        if (plan.finals) final = finals[episode];
        missing = final < 0;
    }
    i64 count = max(last - first - missing, 0LL);
    // A missing final observation leaves its row empty, so that the other rows stay with their own steps.
    i64 head = count == 0 ? width : plan.pad_left ? width - count - missing : first - wanted;
    return Span{first, count, head, final};
}

// The hop of a window's first step: the steps to its next state, and whether its last step is terminal. See
// gear_data.kernels.cpu.transitions. flags: the flag of the step.
struct Hop {
    i64 steps;
    bool ended;
};

__device__ Hop hop_of(const OutputPlan &plan, const u8 *flags, i64 step, i64 total, i64 episode, const i64 *finals) {
    i64 left = min(plan.hops, total - step);
    for (i64 j = 0; j < left; j++) {
        if (flags[j]) return Hop{j + 1, true};
    }
    bool missing = step + left == total && !(plan.reach && finals[episode] >= 0);
    return Hop{left - missing, false};
}

// The rows of an output whose steps are relative to the next state. Without a next state, all rows are padding.
__device__ Span locate_next(const OutputPlan &plan, i64 hop, i64 start, i64 total, i64 episode, const i64 *finals) {
    i64 final = plan.finals ? finals[episode] : -1, states = total + (final >= 0), state = start + hop;
    i64 first = max(state + plan.first, 0LL), last = min(state + plan.first + plan.width, states);
    i64 count = hop && state < states ? max(last - first, 0LL) : 0;
    return Span{first, count, count ? first - state - plan.first : plan.width, count && last > total ? final : -1};
}

// Bytes

#ifdef __CUDACC_RTC__
// Reads a word of a column, if it is wanted, past the first cache: no byte of a column is read twice.
__device__ Word load_word(const Word *place, bool wanted) {
    Word word = {0, 0};
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %3, 0; "
        "@wanted ld.global.nc.L1::no_allocate.v2.u64 {%0, %1}, [%2]; }"
        : "+l"(word.x), "+l"(word.y)
        : "l"(place), "r"((u32)wanted));
    return word;
}
#endif

__device__ void zero(u32 lane, u8 *target, i64 count) {
    i64 head = min(count, (i64)(-(u64)target & 15)), words = (count - head) >> 4, done = head + (words << 4);
    if (lane < head) target[lane] = 0;
    for (i64 i = lane; i < words; i += LANES) ((Word *)(target + head))[i] = Word{0, 0};
    if (lane < count - done) target[done + lane] = 0;
}

template <class Unit> __device__ void copy_units(u32 lane, u8 *target, const u8 *source, i64 count) {
    for (i64 i = lane; i < count / (i64)sizeof(Unit); i += LANES) ((Unit *)target)[i] = ((const Unit *)source)[i];
}

// The words of a round: words first to last - 1 of a source, of which a lane holds every 32nd. `line` is the address of
// word 0, a multiple of a memory line. All loads are issued before the first word is used.
__device__ void load_round(u32 lane, Word (&held)[UNROLL], const u8 *line, u32 at, u32 first, u32 last) {
#pragma unroll
    for (u32 u = 0; u < UNROLL; u++) {
        u32 i = at + u * LANES + lane;
        held[u] = load_word((const Word *)line + i, i >= first && i < last);
    }
}

// Stores the next bytes of a word if they are wanted and end at byte `last` or before.
template <class Unit> __device__ void store_unit(u8 *target, Word word, u32 &first, u32 last, bool wanted) {
    if (!wanted || first + sizeof(Unit) > last) return;
    *(Unit *)(target + first) = (Unit)((first < 8 ? word.x : word.y) >> (first & 7) * 8);
    first += sizeof(Unit);
}

// Stores the bytes first to last - 1 of a word, by the widest aligned stores. They are not all sixteen.
__device__ void store_part(u8 *target, Word word, u32 first, u32 last) {
    store_unit<u8>(target, word, first, last, first & 1);
    store_unit<u16>(target, word, first, last, first & 2);
    store_unit<u32>(target, word, first, last, first & 4);
    store_unit<u64>(target, word, first, last, true);
    store_unit<u32>(target, word, first, last, true);
    store_unit<u16>(target, word, first, last, true);
    store_unit<u8>(target, word, first, last, true);
}

// Copies bytes between addresses that are equal modulo 16.
__device__ void copy_alike(u32 lane, u8 *target, const u8 *source, u32 count) {
    u32 begin = (u32)((u64)source & (LINE - 1)), end = begin + count;
    source -= begin, target -= begin;
    for (u32 at = 0; at * sizeof(Word) < end; at += UNROLL * LANES) {
        Word held[UNROLL];
        load_round(lane, held, source, at, begin >> 4, (end + 15) >> 4);
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u32 place = (at + u * LANES + lane) * sizeof(Word), stop = place + sizeof(Word);
            if (place >= begin && stop <= end) {
                *(Word *)(target + place) = held[u];
            } else if (stop > begin && place < end) {
                store_part(target + place, held[u], max(begin, place) - place, min(end, stop) - place);
            }
        }
    }
}

// Fetches as many source bytes as fit into the stage, so that the next call starts at a line.
//
// The bytes keep their offset in a line. Returns the number of bytes; `begin` receives their offset in the stage.
__device__ u32 fetch(u32 lane, u8 *stage, const u8 *source, i64 count, u32 &begin) {
    begin = (u32)((u64)source & (LINE - 1));
    u32 end = (u32)min((i64)STAGE, begin + count), first = begin >> 4, last = (end + 15) >> 4;
    Word held[UNROLL];
    load_round(lane, held, source - begin, 0, first, last);
#pragma unroll
    for (u32 u = 0; u < UNROLL; u++) {
        u32 i = u * LANES + lane;
        if (i >= first && i < last) ((Word *)stage)[i] = held[u];
    }
    __syncwarp();
    return end - begin;
}

// Returns sixteen bytes of two words, starting at byte `skip` (1 to 15).
__device__ Word shifted(Word low, Word high, u32 skip) {
    u64 a = skip < 8 ? low.x : low.y, b = skip < 8 ? low.y : high.x, c = skip < 8 ? high.x : high.y;
    u32 bits = (skip & 7) * 8;
    // Two shifts, because a shift by 64 bits is undefined.
    return Word{(a >> bits) | (b << 1 << (63 - bits)), (b >> bits) | (c << 1 << (63 - bits))};
}

__device__ void copy_shifted(u32 lane, u8 *stage, u8 *target, const u8 *source, i64 count) {
    while (count > 0) {
        u32 begin, got = fetch(lane, stage, source, count, begin);
        u32 head = min(got, (u32)(-(u64)target & 15)), words = (got - head) >> 4, done = head + (words << 4);
        u32 edge = lane < 16 ? lane : done + lane - 16;
        if (edge < (lane < 16 ? head : got)) target[edge] = stage[begin + edge];
        u32 from = begin + head, skip = from & 15;
        const Word *held = (const Word *)(stage + from - skip);
        for (u32 i = lane; i < words; i += LANES) {
            ((Word *)(target + head))[i] = skip ? shifted(held[i], held[i + 1], skip) : held[i];
        }
        __syncwarp();
        source += got, target += got, count -= got;
    }
}

__device__ void copy(u32 lane, u8 *stage, u8 *target, const u8 *source, i64 count) {
    u64 both = (u64)target | (u64)source;
    if (count <= SHORT && ((both | (u64)count) & 3) == 0) {
        copy_units<u32>(lane, target, source, count);
    } else if (count <= LANES) {
        copy_units<u8>(lane, target, source, count);
    } else if ((((u64)target ^ (u64)source) & 15) == 0) {
        copy_alike(lane, target, source, (u32)count);
    } else {
        copy_shifted(lane, stage, target, source, count);
    }
}

// Numbers
//
// A NaN result has the bits that x86 gives: the first NaN operand, made quiet; without a NaN operand, the default NaN,
// which has the sign bit. A GPU's own instructions give other bits.
// Subnormal float32 values are converted by their bits, because CuPy compiles with -ftz=true, which flushes them to 0.

const u64 QUIET = 0x0008000000000000, EXPONENT = 0x7FF0000000000000, DEFAULT_NAN = 0xFFF8000000000000;

__device__ bool is_nan(double value) { return value != value; }
__device__ double quiet(double value) { return __longlong_as_double(__double_as_longlong(value) | (i64)QUIET); }
__device__ double default_nan() { return __longlong_as_double((i64)DEFAULT_NAN); }

struct Half {
    u16 bits;
};

__device__ double number(Half value) {
    u32 exponent = (value.bits >> 10) & 31, fraction = value.bits & 1023;
    u64 sign = (u64)(value.bits >> 15) << 63;
    if (exponent == 31) return __longlong_as_double((i64)(sign | EXPONENT | (fraction ? QUIET : 0)));
    // Subnormals count in units of 2^-24; the others are scaled by powers of two from 2^-24 on.
    double size = exponent == 0 ? fraction * 0x1p-24
                                : (1024.0 + fraction) * __longlong_as_double((i64)(u64)(exponent + 1023 - 25) << 52);
    return __longlong_as_double((i64)sign | __double_as_longlong(size));
}

__device__ double number(float value) {
    u32 bits = __float_as_uint(value), size = bits & 0x7FFFFFFF;
    u64 sign = (u64)(bits >> 31) << 63;
    if (size > 0x7F800000) return __longlong_as_double((i64)(sign | EXPONENT | QUIET | (u64)(bits & 0x7FFFFF) << 29));
    if (size >= 0x800000) return value;
    // Subnormals count in units of 2^-149.
    return __longlong_as_double((i64)sign | __double_as_longlong(size * 0x1p-149));
}

template <class T> __device__ double number(T value) { return (double)value; }

__device__ double normalised(double value, double mean, double scale) {
    double result = __dmul_rn(__dadd_rn(value, -mean), scale);
    if (!is_nan(result)) return result;
    return is_nan(value) ? quiet(value) : is_nan(mean) ? quiet(mean) : is_nan(scale) ? quiet(scale) : default_nan();
}

__device__ u32 float32_bits(double value) {
    u64 bits = (u64)__double_as_longlong(value);
    u32 sign = (u32)(bits >> 63) << 31;
    if (is_nan(value)) return sign | 0x7FC00000 | (u32)(bits >> 29 & 0x7FFFFF);
    double size = __longlong_as_double((i64)(bits & ~(1ULL << 63)));
    // Subnormals by their bits; the largest may round to the smallest normal value.
    if (size < 0x1p-126) return sign | (u32)rint(__dmul_rn(size, 0x1p149));
    return __float_as_uint(__double2float_rn(value));
}

// Rounds the bits of a float32 to the nearest float16, ties to even.
__device__ u16 float16_bits(u32 bits) {
    u32 sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return (u16)(sign | 0x7E00);
    if (rest >= 0x47800000) return (u16)(sign | 0x7C00);
    if (rest >= 0x38800000) return (u16)(sign | ((rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13));
    // A subnormal float16 counts in units of 2^-24: the implicit bit is shifted in, and the lost bits round.
    u32 shift = 126 - (rest >> 23);
    if (shift > 25) return (u16)sign;
    u32 whole = (rest & 0x7FFFFF) | 0x800000, half = whole >> shift;
    u32 lost = whole & ((1U << shift) - 1), middle = 1U << (shift - 1);
    return (u16)(sign | (half + (lost > middle || (lost == middle && (half & 1)))));
}

__device__ u16 bfloat16_bits(u32 bits) {
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : (u16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

__device__ void store(i64 type, u8 *out, i64 element, double value) {
    if (type == FLOAT64) {
        ((double *)out)[element] = value;
    } else if (type == FLOAT32) {
        ((u32 *)out)[element] = float32_bits(value);
    } else {
        // Through float32, as documented.
        u32 bits = float32_bits(value);
        ((u16 *)out)[element] = type == FLOAT16 ? float16_bits(bits) : bfloat16_bits(bits);
    }
}

__device__ __noinline__ double number_at(i64 type, const u8 *place) {
    switch (type) {
    case 0: return number(*(const u8 *)place);
    case 1: return number(*(const u16 *)place);
    case 2: return number(*(const u32 *)place);
    case 3: return number(*(const u64 *)place);
    case 4: return number(*(const signed char *)place);
    case 5: return number(*(const short *)place);
    case 6: return number(*(const int *)place);
    case 7: return number(*(const i64 *)place);
    case 8: return number(*(const float *)place);
    case 9: return number(*(const double *)place);
    default: return number(*(const Half *)place);
    }
}

// Converts `count` elements, starting at element `first` of the rows at `source` and `target`.
template <class T>
__device__ __noinline__ void convert(const OutputPlan &plan, u32 lane, u8 *stage, u8 *target, const u8 *source,
                                     i64 first, i64 count) {
    const double *mean = plan.affine, *scale = plan.affine + plan.affine_rows * plan.elements;
    i64 elements = plan.elements, type = plan.out_type;
    // The index of the lane's element in its row, updated without a division for each element.
    i64 column = (first + lane) % elements, stride = LANES % elements;
    source += first * sizeof(T);
    while (count > 0) {
        u32 begin, got = fetch(lane, stage, source, count * sizeof(T), begin) / sizeof(T);
        const T *values = (const T *)(stage + begin);
        for (u32 i = lane; i < got; i += LANES) {
            store(type, target, first + i, normalised(number(values[i]), mean[column], scale[column]));
            column += stride;
            if (column >= elements) column -= elements;
        }
        __syncwarp();
        source += got * sizeof(T), first += got, count -= got;
        column = (first + lane) % elements;
    }
}

__device__ void convert_any(const OutputPlan &plan, u32 lane, u8 *stage, u8 *target, const u8 *source, i64 first,
                            i64 count) {
#define CONVERT_FROM(T) convert<T>(plan, lane, stage, target, source, first, count)
    switch (plan.source_type) {
    case 0: CONVERT_FROM(u8); break;
    case 1: CONVERT_FROM(u16); break;
    case 2: CONVERT_FROM(u32); break;
    case 3: CONVERT_FROM(u64); break;
    case 4: CONVERT_FROM(signed char); break;
    case 5: CONVERT_FROM(short); break;
    case 6: CONVERT_FROM(int); break;
    case 7: CONVERT_FROM(i64); break;
    case 8: CONVERT_FROM(float); break;
    case 9: CONVERT_FROM(double); break;
    default: CONVERT_FROM(Half);
    }
#undef CONVERT_FROM
}

// Returns the discounted sum that starts with the element at `place`, over at most `left` rows.
__device__ double discounted(const OutputPlan &plan, const u8 *place, i64 left) {
    double total = 0.0;
    for (i64 j = 0; j < min(plan.horizon, left); j++, place += plan.source_bytes) {
        double value = number_at(plan.source_type, place), part = __dmul_rn(plan.discounts[j], value);
        if (is_nan(part)) part = is_nan(value) ? quiet(value) : default_nan();
        double sum = __dadd_rn(total, part);
        total = !is_nan(sum) ? sum : is_nan(total) ? total : is_nan(part) ? part : default_nan();
    }
    return total;
}

// Parts of a window. `target` and `source` are the part's first row; rows and bytes are counted from there.

// Writes step indices from `step` on. A stride of 0 writes the same index to all rows.
__device__ void count_rows(const OutputPlan &plan, u32 lane, u8 *target, i64 first, i64 last, i64 step, i64 stride) {
    for (i64 row = first + lane; row < last; row += LANES) {
        i64 number = plan.origin + step + row * stride;
        switch (plan.out_type) {
        case STEP_INT64: ((i64 *)target)[row] = number; break;
        case STEP_INT32: ((int *)target)[row] = (int)number; break;
        case STEP_FLOAT32: ((float *)target)[row] = (float)number; break;
        case STEP_FLOAT64: ((double *)target)[row] = (double)number;
        }
    }
}

template <class Unit>
__device__ void repeat_units(u32 lane, u8 *target, const u8 *source, i64 row_bytes, i64 first, i64 last) {
    i64 units = row_bytes / (i64)sizeof(Unit);
    for (i64 i = first / (i64)sizeof(Unit) + lane; i < last / (i64)sizeof(Unit); i += LANES) {
        ((Unit *)target)[i] = ((const Unit *)source)[i % units];
    }
}

// Fills the bytes first to last with copies of one row.
__device__ void repeat_row(u32 lane, u8 *target, const u8 *source, i64 row_bytes, i64 first, i64 last) {
    u64 all = (u64)target | (u64)source | (u64)row_bytes | (u64)first | (u64)last;
    if ((all & 15) == 0) {
        repeat_units<Word>(lane, target, source, row_bytes, first, last);
    } else if ((all & 3) == 0) {
        repeat_units<u32>(lane, target, source, row_bytes, first, last);
    } else {
        repeat_units<u8>(lane, target, source, row_bytes, first, last);
    }
}

// Computes the elements first to last. With `repeat`, all rows equal the first row. left: steps of the episode from the
// first row's step.
__device__ void element_rows(const OutputPlan &plan, u32 lane, u8 *target, const u8 *source, i64 first, i64 last,
                             i64 left, bool repeat) {
    i64 elements = plan.elements, source_item = plan.source_bytes / elements;
    const double *scale = plan.affine + plan.affine_rows * elements;
    for (i64 i = first + lane; i < last; i += LANES) {
        i64 row = repeat ? 0 : i / elements, element = i % elements;
        const u8 *place = source + row * plan.source_bytes + element * source_item;
        double value = plan.kind == DISCOUNTED
                           ? discounted(plan, place, left - row)
                           : normalised(number_at(plan.source_type, place), plan.affine[element], scale[element]);
        store(plan.out_type, target, i, value);
    }
}

// Fills the bytes first to last of a part whose rows are not plain copies. Not inlined, because the plain copy would
// then need more registers.
__device__ __noinline__ void make_rows(const OutputPlan &plan, u32 lane, u8 *stage, u8 *target, const u8 *source,
                                       i64 first, i64 last, i64 step, i64 left, bool repeat) {
    if (plan.kind == TIMESTEP) {
        count_rows(plan, lane, target, first / plan.out_bytes, last / plan.out_bytes, step, !repeat);
        return;
    }
    if (plan.kind == COPY || plan.kind == CONSTANT) {
        repeat_row(lane, target, source, plan.out_bytes, first, last);
        return;
    }
    i64 item = plan.out_bytes / plan.elements;
    if (plan.kind == CONVERT && !repeat) {
        convert_any(plan, lane, stage, target, source, first / item, (last - first) / item);
    } else {
        element_rows(plan, lane, target, source, first / item, last / item, left, repeat);
    }
}

// Fills the bytes lo to hi of a window's output. out, source: the window's first row, and its first step's row.
__device__ void fill_piece(const OutputPlan &plan, const Span &span, u32 lane, u8 *stage, u8 *out, const u8 *source,
                           i64 lo, i64 hi, i64 left) {
    i64 head = span.head, rows = span.count, end = head + rows, padding = plan.padding;
    bool reads = plan.kind == COPY || plan.kind == CONVERT || plan.kind == DISCOUNTED;
    // HOP: `source` is the chosen row of the table.
    // blank: the first valid row holds the fill, because no step precedes it. final: the last valid row is a final
    // observation.
    i64 blank = rows > 0 && reads && plan.shift < 0 && span.first == 0, final = rows > 0 && reads && span.final >= 0;
    // The parts, in order: 0 padding, 1 the blank row, 2 rows of steps, 3 the final observation, 4 padding. Most pieces
    // lie in part 2 only.
    u32 part = lo >= (head + blank) * plan.out_bytes ? 2 : 0, parts = hi <= (end - final) * plan.out_bytes ? 3 : 5;
#pragma unroll 1
    for (; part < parts; part++) {
        i64 from = part == 0 ? 0 : part == 1 ? head : part == 2 ? head + blank : part == 3 ? end - final : end;
        i64 to = part == 0 ? head : part == 1 ? head + blank : part == 2 ? end - final : part == 3 ? end : plan.width;
        i64 first = max(lo - from * plan.out_bytes, 0LL), last = min(hi, to * plan.out_bytes) - from * plan.out_bytes;
        if (first >= last) continue;
        // The valid row that the part begins with, and whether the whole part repeats it.
        i64 row = from - head;
        bool repeat = false, fill = part == 1;
        if (part == 0 || part == 4) {
            fill = padding == PAD_FILL || rows == 0;
            if (padding == PAD_EDGE || padding == PAD_FIRST) {
                repeat = true;
                row = part == 0 || padding == PAD_FIRST ? 0 : rows - 1;
                fill = fill || (row == 0 && blank);
            }
        }
        u64 here = fill                     ? (u64)plan.fill
                   : plan.kind == HOP       ? (u64)source
                   : !reads                 ? (u64)plan.valid + row * plan.out_bytes
                   : final && row == rows - 1 ? (u64)plan.finals + span.final * plan.source_bytes
                                            : (u64)source + row * plan.source_bytes;
        u8 *target = out + from * plan.out_bytes;
        if (fill && !here) {
            zero(lane, target + first, last - first);
        } else if (fill || (!repeat && (plan.kind == COPY || plan.kind == CONSTANT || plan.kind == HOP))) {
            copy(lane, stage, target + first, (const u8 *)here + first, last - first);
        } else {
            make_rows(plan, lane, stage, target, (const u8 *)here, first, last, span.first + row, left - row, repeat);
        }
    }
}

}  // namespace

// Fills every output of one or more batches.
//
// The arguments are the arrays of gear_data.kernels.cpu.collect.collect, on the device, with these differences:
//   order: the windows in the order in which they are read; 0: as they are.
//   row_of_window: 0: window b fills row b. finals: 0: no output has final observations.
//   count, columns, outputs_count: the numbers of windows, of columns of `addresses`, and of outputs.
//   pieces: [outputs + 1], pieces of a window before each output; an output has ceil((width * out_bytes + 127) / 8192).
//   outputs: offsets of the arrays in `memory`.
//   Nothing is counted: the kernels that draw count valid rows.
// A block has at most GEAR_THREADS threads, a multiple of 32. Any number of blocks does the work; fewer blocks use fewer
// multiprocessors. Columns, templates and outputs begin at multiples of their elements' sizes.
extern "C" __global__ void __launch_bounds__(GEAR_THREADS, GEAR_RESIDENT)
gear_collect(const i64 *episode, const i64 *start, const i64 *length, const i64 *order, const i64 *row_of_window, i64 count,
             const i64 *shards, const i64 *bases, const i64 *lengths, const i64 *finals, const i64 *addresses,
             i64 columns, const OutputPlan *plans, i64 outputs_count, i64 memory, const i64 *outputs, const i64 *pieces) {
    __shared__ Word stages[MAX_WARPS][STAGE / sizeof(Word) + 1];
    u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    i64 a_window = pieces[outputs_count], items = count * a_window;
    for (i64 item = (i64)blockIdx.x * warps + warp; item < items; item += (i64)gridDim.x * warps) {
        i64 turn = item / a_window, number = item - turn * a_window, k = 0, last = outputs_count - 1;
        i64 b = order ? order[turn] : turn;
        while (k < last) {
            i64 middle = (k + last + 1) >> 1;
            if (pieces[middle] <= number) {
                k = middle;
            } else {
                last = middle - 1;
            }
        }
        i64 e = episode[b], total = lengths[e];
        const OutputPlan &plan = plans[k];
        i64 size = plan.width * plan.out_bytes, at = (number - pieces[k]) * PIECE;
        Span span = locate(plan, start[b], length[b], total, e, finals);
        Hop hop = {0, false};
        if (plan.hops) {
            hop = hop_of(plan, (const u8 *)addresses[shards[e] * columns + plan.ends] + bases[e] + start[b], start[b], total,
                         e, finals);
            if (plan.shift) span = locate_next(plan, hop.steps, start[b], total, e, finals);
        }
        u8 *out = (u8 *)(memory + outputs[k]) + (row_of_window ? row_of_window[b] : b) * size;
        u64 source = 0;
        i64 phase = 0;
        if (span.count && (plan.kind <= CONVERT || plan.kind == DISCOUNTED)) {
            // An integer, because the row before an episode's first row may lie outside the column.
            source = (u64)addresses[shards[e] * columns + plan.column] +
                     (u64)((bases[e] + span.first + (plan.hops ? 0 : plan.shift)) * plan.source_bytes);
            // A copy is cut into pieces at lines of the source.
            if (plan.kind == COPY) phase = (i64)((source - (u64)(span.head * plan.out_bytes)) & (LINE - 1));
        } else if (plan.kind == HOP) {
            source = (u64)plan.valid + (u64)((hop.steps + (plan.horizon + 1) * hop.ended) * plan.out_bytes);
        }
        fill_piece(plan, span, lane, (u8 *)stages[warp], out, (const u8 *)source, max(at - phase, 0LL),
                   min(at + PIECE - phase, size),
                   plan.hops ? max(hop.steps, 1LL) : total - span.first);
    }
}
