// The tables that draws search, built and updated on a GPU: integer weights with their running sums and guide, trees of
// sums, and the episodes with the largest values. The integers equal the results of
// gear_data.kernels.cpu.integer_weights, gear_data.kernels.cpu.weight_tree and gear_data.selection.samplers.topk.
// gear_data.selection.integer_weights defines the scale.
//
// weights: float64 [count]. prefix: int64 [count + 1], anchors before each episode. by_anchor: 1 if a weight applies to
// each anchor. low, high: the bits of two float64, whose product is the scale. Memory that sums are added to must be 0.
//
// Running sums take three launches, with a tile of 4,096 episodes for each block: `..._tiles` sums each tile,
// gear_scan_tiles turns these into running sums, and `..._prefix` fills the table. A block has at most 1,024 threads, a
// multiple of 32. This file includes no headers.

typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

namespace {

const u32 LANES = 32, WHOLE = 0xFFFFFFFF;
const i64 TILE = 4096;
const u32 ARITY_BITS = 4, ARITY = 1 << ARITY_BITS;
// The largest integer weight of an episode.
const i64 MAX_WEIGHT = 0x7FFFFFFFFFFFFFFF;
const i64 NONE = -1;

__device__ i64 thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ i64 thread_count() { return (i64)gridDim.x * blockDim.x; }

__device__ i64 warp_sum(i64 value) {
    for (u32 apart = LANES / 2; apart; apart /= 2) value += __shfl_xor_sync(WHOLE, value, apart);
    return value;
}

__device__ u64 warp_max(u64 value) {
    for (u32 apart = LANES / 2; apart; apart /= 2) value = max(value, __shfl_xor_sync(WHOLE, value, apart));
    return value;
}

// Adds the values of all threads of a launch to *out.
__device__ void add(i64 *out, i64 value) {
    value = warp_sum(value);
    if (threadIdx.x % LANES == 0 && value) atomicAdd((u64 *)out, (u64)value);
}

// Returns the sum of the values of the threads up to this one in the block. `total` receives the sum of all values. All
// threads of the block must call it.
__device__ i64 block_scan(i64 value, i64 &total) {
    __shared__ i64 sums[LANES];
    u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    for (u32 apart = 1; apart < LANES; apart *= 2) {
        i64 before = __shfl_up_sync(WHOLE, value, apart);
        if (lane >= apart) value += before;
    }
    if (lane == LANES - 1) sums[warp] = value;
    __syncthreads();
    i64 before = 0;
    total = 0;
    for (u32 i = 0; i < warps; i++) {
        if (i < warp) before += sums[i];
        total += sums[i];
    }
    __syncthreads();
    return before + value;
}

// Integer weights

struct Weights {
    const double *weights;
    const i64 *prefix;
    i64 by_anchor;
    double low, high;

    __device__ i64 anchors(i64 i) const { return prefix[i + 1] - prefix[i]; }
    // The number of units that an episode's weight applies to: its anchors, or 1.
    __device__ i64 units(i64 anchors) const { return by_anchor ? anchors : 1; }
    __device__ double rounded(double weight) const { return rint(__dmul_rn(__dmul_rn(weight, low), high)); }

    __device__ i64 operator()(i64 i) const {
        i64 found = anchors(i);
        double weight = weights[i];
        return found && weight > 0 ? max(1LL, (i64)rounded(weight)) * units(found) : 0;
    }

    // The same for a weight that may be too large for the scale.
    __device__ i64 bounded(double weight, i64 found) const {
        if (!found || !(weight > 0)) return 0;
        double int_weight = max(1.0, rounded(weight));
        return __dmul_rn(int_weight, (double)units(found)) < 0x1p63 ? (i64)int_weight * units(found) : MAX_WEIGHT;
    }
};

__device__ Weights scaled(const double *weights, const i64 *prefix, i64 by_anchor, i64 low, i64 high) {
    return Weights{weights, prefix, by_anchor, __longlong_as_double(low), __longlong_as_double(high)};
}

// Integer weights of 1 for each anchor (or each episode with one) of the chosen episodes. chosen = 0: all episodes.
struct Chosen {
    const i64 *prefix;
    i64 by_anchor;
    const u8 *chosen;

    __device__ i64 operator()(i64 i) const {
        i64 anchors = prefix[i + 1] - prefix[i];
        return !chosen || chosen[i] ? by_anchor ? anchors : min(anchors, 1LL) : 0;
    }
};

// Running sums

template <class Values> __device__ void sum_tiles(const Values &values, i64 count, i64 *sums) {
    for (i64 tile = blockIdx.x; tile * TILE < count; tile += gridDim.x) {
        i64 sum = 0, total;
        for (i64 i = tile * TILE + threadIdx.x; i < min(count, (tile + 1) * TILE); i += blockDim.x) sum += values(i);
        block_scan(sum, total);
        if (threadIdx.x == 0) sums[tile] = total;
    }
}

// Calls take(i, value, sum of the values up to and including i) for all i.
template <class Values, class Take>
__device__ void scan_tiles(const Values &values, i64 count, const i64 *before, const Take &take) {
    for (i64 tile = blockIdx.x; tile * TILE < count; tile += gridDim.x) {
        i64 base = before[tile], total;
        for (i64 first = tile * TILE; first < min(count, (tile + 1) * TILE); first += blockDim.x) {
            i64 i = first + threadIdx.x, value = i < min(count, (tile + 1) * TILE) ? values(i) : 0;
            i64 sum = base + block_scan(value, total);
            if (i < min(count, (tile + 1) * TILE)) take(i, value, sum);
            base += total;
        }
    }
}

struct Put {
    i64 *out;

    __device__ void operator()(i64 i, i64, i64 sum) const {
        if (i == 0) out[0] = 0;
        out[i + 1] = sum;
    }
};

// The largest values

// The state of a search for the k largest values. leading: the leading bits of the k-th largest key, as far as they are
// known. left: keys with these bits that are among the k largest. usable: number of keys. counts: keys with these bits,
// for each value of the next eight bits.
struct Largest {
    u64 leading, left, usable, counts[256];
};

struct Ranked {
    const double *values;
    const i64 *prefix;

    // Returns a key in the order of the values; -0 counts as 0. The key is 0 for a value that cannot be chosen: NaN, or
    // the value of an episode without an anchor.
    __device__ u64 key(i64 i) const {
        double value = values[i];
        if (value != value || prefix[i + 1] == prefix[i]) return 0;
        u64 bits = value == 0 ? 0 : (u64)__double_as_longlong(value);
        return bits >> 63 ? ~bits : bits | 1ULL << 63;
    }
};

struct Ties {
    Ranked ranked;
    u64 key;

    __device__ i64 operator()(i64 i) const { return ranked.key(i) == key; }
};

struct Mark {
    Ranked ranked;
    u64 key;
    i64 left;
    u8 *chosen;

    __device__ void operator()(i64 i, i64 tie, i64 ties) const {
        chosen[i] = ranked.key(i) > key || (tie && ties <= left);
    }
};

// A hash table of the rows of an update: the rows, and the entry of each row that was inserted last.

__device__ i64 first_place(i64 size, i64 row) { return (i64)((u64)row * 0x9E3779B97F4A7C15ULL >> 20) & (size - 1); }

__device__ i64 place_of(const i64 *table, i64 size, i64 row) {
    i64 at = first_place(size, row);
    while (table[at] != row) at = (at + 1) & (size - 1);
    return at;
}

}  // namespace

// out[0:3] = (bits of the largest weight, anchors or episodes, episodes). Only positive weights of episodes with an
// anchor count.
extern "C" __global__ void gear_weight_bounds(const double *weights, const i64 *prefix, i64 by_anchor, i64 count,
                                              i64 *out) {
    Weights all = {weights, prefix, by_anchor, 1.0, 1.0};
    u64 largest = 0;
    i64 units = 0, episodes = 0;
    for (i64 i = thread(); i < count; i += thread_count()) {
        i64 anchors = all.anchors(i);
        if (!anchors || !(weights[i] > 0)) continue;
        // The bits of positive numbers have the order of the numbers.
        largest = max(largest, (u64)__double_as_longlong(weights[i]));
        units += all.units(anchors), episodes++;
    }
    largest = warp_max(largest);
    if (threadIdx.x % LANES == 0) atomicMax((u64 *)out, largest);
    add(out + 1, units);
    add(out + 2, episodes);
}

// out[0:2] = (total integer weight, episodes raised to 1).
extern "C" __global__ void gear_int_weight_sums(const double *weights, const i64 *prefix, i64 by_anchor, i64 low,
                                                i64 high, i64 count, i64 *out) {
    Weights all = scaled(weights, prefix, by_anchor, low, high);
    i64 sum = 0, raised = 0;
    for (i64 i = thread(); i < count; i += thread_count()) {
        i64 int_weight = all(i);
        sum += int_weight;
        raised += int_weight && all.rounded(weights[i]) == 0;
    }
    add(out, sum);
    add(out + 1, raised);
}

// sums, int64 [tiles + 1]: receives the integer weight of each tile.
extern "C" __global__ void gear_weighted_tiles(const double *weights, const i64 *prefix, i64 by_anchor, i64 low,
                                               i64 high, i64 count, i64 *sums) {
    sum_tiles(scaled(weights, prefix, by_anchor, low, high), count, sums);
}

// out, int64 [count + 1]: receives the integer weight before each episode.
extern "C" __global__ void gear_weighted_prefix(const double *weights, const i64 *prefix, i64 by_anchor, i64 low,
                                                i64 high, i64 count, const i64 *sums, i64 *out) {
    scan_tiles(scaled(weights, prefix, by_anchor, low, high), count, sums, Put{out});
}

// The same for integer weights of 1 for each anchor (by_anchor = 1) or each episode with one. chosen: uint8 [count], 0
// for episodes with the weight 0; address 0: all episodes are chosen.
extern "C" __global__ void gear_chosen_tiles(const i64 *prefix, i64 by_anchor, const u8 *chosen, i64 count, i64 *sums) {
    sum_tiles(Chosen{prefix, by_anchor, chosen}, count, sums);
}

extern "C" __global__ void gear_chosen_prefix(const i64 *prefix, i64 by_anchor, const u8 *chosen, i64 count,
                                              const i64 *sums, i64 *out) {
    scan_tiles(Chosen{prefix, by_anchor, chosen}, count, sums, Put{out});
}

// sums[t] = the sum of the tiles before t; sums[tiles] = the sum of all tiles. One block.
extern "C" __global__ void gear_scan_tiles(i64 *sums, i64 tiles) {
    i64 base = 0, total;
    for (i64 first = 0; first < tiles; first += blockDim.x) {
        i64 i = first + threadIdx.x, value = i < tiles ? sums[i] : 0;
        i64 sum = base + block_scan(value, total);
        if (i < tiles) sums[i] = sum - value;
        base += total;
    }
    if (threadIdx.x == 0) sums[tiles] = base;
}

// guide[b] = the episode of point b << shift; the last entry is for the last point. uint32 [size], see PrefixTable.
extern "C" __global__ void gear_fill_guide(const i64 *prefix, i64 episodes, i64 shift, u32 *guide, i64 size) {
    i64 last = prefix[episodes] - 1;
    for (i64 b = thread(); b < size; b += thread_count()) {
        // The last episode that begins at or before the point. Episodes of weight 0 begin where the next one does.
        i64 point = min(b << shift, last), low = 0, high = episodes - 1;
        while (low < high) {
            i64 middle = (low + high + 1) >> 1;
            if (prefix[middle] <= point) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        guide[b] = (u32)low;
    }
}

// Counts the keys with the known leading bits, for each value of the next eight bits. round: 0 to 7.
extern "C" __global__ void gear_largest_count(const double *values, const i64 *prefix, i64 count, Largest *state,
                                              i64 round) {
    __shared__ u32 counts[256];
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    Ranked ranked = {values, prefix};
    u64 leading = state->leading;
    u32 shift = 56 - 8 * (u32)round;
    for (i64 i = thread(); i < count; i += thread_count()) {
        u64 key = ranked.key(i);
        if (key && key >> shift >> 8 == leading) atomicAdd(counts + (key >> shift & 255), 1U);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) {
        if (counts[i]) atomicAdd(state->counts + i, (u64)counts[i]);
    }
}

// Finds the next eight bits. One thread. Before round 0, `left` is k and all other fields are 0. After round 7,
// `leading` is the k-th largest key, and `left` is the number of keys equal to it that are taken. If `usable` is below
// k, the other fields are undefined.
extern "C" __global__ void gear_largest_pick(Largest *state, i64 round) {
    u64 all = 0, above = 0;
    for (u32 i = 0; i < 256; i++) all += state->counts[i];
    if (round == 0) state->usable = all;
    u32 digit = 255;
    for (; digit > 0 && above + state->counts[digit] < state->left; digit--) above += state->counts[digit];
    state->leading = state->leading << 8 | digit;
    state->left -= above;
    for (u32 i = 0; i < 256; i++) state->counts[i] = 0;
}

// sums, int64 [tiles + 1]: receives the number of values in each tile that equal the k-th largest.
extern "C" __global__ void gear_largest_tiles(const double *values, const i64 *prefix, i64 count, const Largest *state,
                                              i64 *sums) {
    sum_tiles(Ties{{values, prefix}, state->leading}, count, sums);
}

// chosen, uint8 [count]: receives 1 for the k largest values; ties go to the first episode.
extern "C" __global__ void gear_largest_mark(const double *values, const i64 *prefix, i64 count, const Largest *state,
                                             const i64 *sums, u8 *chosen) {
    Ranked ranked = {values, prefix};
    scan_tiles(Ties{ranked, state->leading}, count, sums, Mark{ranked, state->leading, (i64)state->left, chosen});
}

// Fills level 0 of a tree from weights.
extern "C" __global__ void gear_fill_leaves(const double *weights, const i64 *prefix, i64 by_anchor, i64 low, i64 high,
                                            i64 count, i64 *nodes) {
    Weights all = scaled(weights, prefix, by_anchor, low, high);
    for (i64 i = thread(); i < count; i += thread_count()) nodes[i] = all(i);
}

// Fills a level of a tree, `count` nodes, from the level below.
extern "C" __global__ void gear_fill_level(const i64 *below, i64 *above, i64 count) {
    for (i64 i = thread(); i < count; i += thread_count()) {
        i64 total = 0;
        for (u32 j = 0; j < ARITY; j++) total += below[(i << ARITY_BITS) + j];
        above[i] = total;
    }
}

// Inserts the rows of an update, int64 [m], into a hash table. table: int64 [2 * size], all -1; receives the rows, and
// the entry of each row that was inserted last. size: a power of two, at least 2 m. links: int64 [m]; receives for each
// entry the entry of the same row that was inserted before it.
extern "C" __global__ void gear_put_index(const i64 *rows, i64 m, i64 *table, i64 size, i64 *links) {
    for (i64 i = thread(); i < m; i += thread_count()) {
        i64 at = first_place(size, rows[i]);
        while (true) {
            i64 there = (i64)atomicCAS((u64 *)(table + at), (u64)NONE, (u64)rows[i]);
            if (there == NONE || there == rows[i]) break;
            at = (at + 1) & (size - 1);
        }
        links[i] = (i64)atomicExch((u64 *)(table + size + at), (u64)i);
    }
}

// Sets the weights of rows, int64 [m], to values, float64 [m], and updates the nodes of the tree. If a row occurs
// twice, its last value counts. before[i], float64 [m]: receives the weight before entry i. table, links: the results
// of gear_put_index. change[0:2]: receive the changes of the total integer weight (float64) and of the number of
// positive integer weights. levels = 0: there is no tree, and the caller computes the running sums again.
extern "C" __global__ void gear_put(double *weights, const i64 *prefix, i64 by_anchor, i64 low, i64 high,
                                    const i64 *rows, const double *values, i64 m, const i64 *starts, i64 levels,
                                    i64 *nodes, double *before, const i64 *table, i64 size, const i64 *links,
                                    i64 *change) {
    Weights all = scaled(weights, prefix, by_anchor, low, high);
    for (i64 i = thread(); i < m; i += thread_count()) {
        i64 row = rows[i], first = i, previous = NONE;
        bool last = true;
        for (i64 j = table[size + place_of(table, size, row)]; j != NONE; j = links[j]) {
            last = last && j <= i;
            first = min(first, j);
            if (j < i) previous = max(previous, j);
        }
        if (previous != NONE) before[i] = values[previous];
        // The last entry of an episode does the work that must be done once.
        if (!last) continue;
        double there = weights[row];
        before[first] = there, weights[row] = values[i];
        i64 anchors = all.anchors(row), old = all.bounded(there, anchors), int_weight = all.bounded(values[i], anchors);
        for (i64 level = 0; level < levels; level++) {
            atomicAdd((u64 *)nodes + starts[level] + (row >> level * ARITY_BITS), (u64)int_weight - (u64)old);
        }
        atomicAdd((double *)change, (double)int_weight - (double)old);
        atomicAdd((u64 *)change + 1, (u64)((int_weight > 0) - (old > 0)));
    }
}
