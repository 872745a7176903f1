// The tables that draws search, made and changed on a GPU: quanta of weights, their running sums and guide, trees of
// sums, and the episodes of largest value. The same integers as gear_data.kernels.cpu.integer_weights, weight_tree and
// gear_data.selection.samplers give; `gear_data.selection.integer_weights` says what they are.
//
// weights: float64 [count]. prefix: int64 [count + 1], anchors before each episode. by_anchor: 1 where a weight is of
// each anchor. low, high: the bits of two float64, the scale. Where sums are added to, they are zeros at first.
// Running sums are made in three launches, a tile of 4,096 episodes a block: `..._tiles` sums each tile, gear_scan_tiles
// makes these running, `..._prefix` fills in. Blocks of at most 1,024 threads, a multiple of 32. Needs no include.

typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

namespace {

const u32 LANES = 32, WHOLE = 0xFFFFFFFF;
const i64 TILE = 4096;
const u32 ARITY_BITS = 4, ARITY = 1 << ARITY_BITS;
// Quanta of one episode, at most.
const i64 MOST = 0x7FFFFFFFFFFFFFFF;
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

// Adds up over all threads of a launch.
__device__ void add(i64 *out, i64 value) {
    value = warp_sum(value);
    if (threadIdx.x % LANES == 0 && value) atomicAdd((u64 *)out, (u64)value);
}

// The sum of the values of this thread and those before it in the block, and of all. For all threads at once.
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

// Quanta

struct Weights {
    const double *weights;
    const i64 *prefix;
    i64 by_anchor;
    double low, high;

    __device__ i64 anchors(i64 i) const { return prefix[i + 1] - prefix[i]; }
    // Of an episode with anchors, what a weight counts for.
    __device__ i64 units(i64 anchors) const { return by_anchor ? anchors : 1; }
    __device__ double rounded(double weight) const { return rint(__dmul_rn(__dmul_rn(weight, low), high)); }

    __device__ i64 operator()(i64 i) const {
        i64 found = anchors(i);
        double weight = weights[i];
        return found && weight > 0 ? max(1LL, (i64)rounded(weight)) * units(found) : 0;
    }

    // The same of a weight that may be too large for the scale.
    __device__ i64 bounded(double weight, i64 found) const {
        if (!found || !(weight > 0)) return 0;
        double int_weight = max(1.0, rounded(weight));
        return __dmul_rn(int_weight, (double)units(found)) < 0x1p63 ? (i64)int_weight * units(found) : MOST;
    }
};

__device__ Weights scaled(const double *weights, const i64 *prefix, i64 by_anchor, i64 low, i64 high) {
    return Weights{weights, prefix, by_anchor, __longlong_as_double(low), __longlong_as_double(high)};
}

// One point an anchor (or an episode with one) of the chosen episodes, of all where `chosen` is 0.
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

// Calls take(i, value, sum of the values up to i) for all i.
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

// What a choice of the k largest has come to: the leading bits of the k-th largest key, how many of the keys with these
// bits are taken, how many keys there are, and how many there are of each value of the next eight bits.
struct Largest {
    u64 leading, left, usable, counts[256];
};

struct Ranked {
    const double *values;
    const i64 *prefix;

    // In the order of the numbers, -0 as 0; 0 for what cannot be chosen: NaN, and an episode without an anchor.
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

// A hash table of the rows of an update: rows, and the last entry of each that was put in.

__device__ i64 first_place(i64 size, i64 row) { return (i64)((u64)row * 0x9E3779B97F4A7C15ULL >> 20) & (size - 1); }

__device__ i64 place_of(const i64 *table, i64 size, i64 row) {
    i64 at = first_place(size, row);
    while (table[at] != row) at = (at + 1) & (size - 1);
    return at;
}

}  // namespace

// out[0:3] = bits of the largest weight, anchors or episodes, episodes: among the positive weights of episodes with an
// anchor.
extern "C" __global__ void gear_weight_bounds(const double *weights, const i64 *prefix, i64 by_anchor, i64 count,
                                              i64 *out) {
    Weights all = {weights, prefix, by_anchor, 1.0, 1.0};
    u64 largest = 0;
    i64 units = 0, episodes = 0;
    for (i64 i = thread(); i < count; i += thread_count()) {
        i64 anchors = all.anchors(i);
        if (!anchors || !(weights[i] > 0)) continue;
        // Of positive numbers the bits have the same order.
        largest = max(largest, (u64)__double_as_longlong(weights[i]));
        units += all.units(anchors), episodes++;
    }
    largest = warp_max(largest);
    if (threadIdx.x % LANES == 0) atomicMax((u64 *)out, largest);
    add(out + 1, units);
    add(out + 2, episodes);
}

// out[0:2] = quanta, episodes raised to one.
extern "C" __global__ void gear_int_weight_sums(const double *weights, const i64 *prefix, i64 by_anchor, i64 low, i64 high,
                                            i64 count, i64 *out) {
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

// sums, int64 [tiles + 1]: the quanta of each tile.
extern "C" __global__ void gear_weighted_tiles(const double *weights, const i64 *prefix, i64 by_anchor, i64 low,
                                               i64 high, i64 count, i64 *sums) {
    sum_tiles(scaled(weights, prefix, by_anchor, low, high), count, sums);
}

// out, int64 [count + 1]: quanta before each episode.
extern "C" __global__ void gear_weighted_prefix(const double *weights, const i64 *prefix, i64 by_anchor, i64 low,
                                                i64 high, i64 count, const i64 *sums, i64 *out) {
    scan_tiles(scaled(weights, prefix, by_anchor, low, high), count, sums, Put{out});
}

// The same of one point an anchor (by_anchor = 1) or an episode with one, of the chosen episodes (uint8 [count]; 0:
// of all).
extern "C" __global__ void gear_chosen_tiles(const i64 *prefix, i64 by_anchor, const u8 *chosen, i64 count, i64 *sums) {
    sum_tiles(Chosen{prefix, by_anchor, chosen}, count, sums);
}

extern "C" __global__ void gear_chosen_prefix(const i64 *prefix, i64 by_anchor, const u8 *chosen, i64 count,
                                              const i64 *sums, i64 *out) {
    scan_tiles(Chosen{prefix, by_anchor, chosen}, count, sums, Put{out});
}

// sums[t] = the sums before tile t, sums[tiles] all of them. One block.
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

// guide[b] = the episode of point b << shift, the last point's at the end; uint32 [size], see PrefixTable.
extern "C" __global__ void gear_fill_guide(const i64 *prefix, i64 episodes, i64 shift, u32 *guide, i64 size) {
    i64 last = prefix[episodes] - 1;
    for (i64 b = thread(); b < size; b += thread_count()) {
        // The last episode that begins at the point or before; of those without quanta the one after them.
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

// Of the keys with the leading bits found so far, counts those of each value of the next eight; round 0 to 7.
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

// Finds the next eight bits. One thread. Before round 0 `left` is k and all else 0; after round 7 `leading` is the k-th
// largest key and `left` how many of those equal to it are taken. Where `usable` is below k the rest has no meaning.
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

// sums, int64 [tiles + 1]: how many values of each tile equal the k-th largest.
extern "C" __global__ void gear_largest_tiles(const double *values, const i64 *prefix, i64 count, const Largest *state,
                                              i64 *sums) {
    sum_tiles(Ties{{values, prefix}, state->leading}, count, sums);
}

// chosen, uint8 [count]: 1 for the k largest values, of equal ones the first.
extern "C" __global__ void gear_largest_mark(const double *values, const i64 *prefix, i64 count, const Largest *state,
                                             const i64 *sums, u8 *chosen) {
    Ranked ranked = {values, prefix};
    scan_tiles(Ties{ranked, state->leading}, count, sums, Mark{ranked, state->leading, (i64)state->left, chosen});
}

// Level 0 of a tree, from weights.
extern "C" __global__ void gear_fill_leaves(const double *weights, const i64 *prefix, i64 by_anchor, i64 low, i64 high,
                                            i64 count, i64 *nodes) {
    Weights all = scaled(weights, prefix, by_anchor, low, high);
    for (i64 i = thread(); i < count; i += thread_count()) nodes[i] = all(i);
}

// A level of a tree, `count` nodes, from the one below it.
extern "C" __global__ void gear_fill_level(const i64 *below, i64 *above, i64 count) {
    for (i64 i = thread(); i < count; i += thread_count()) {
        i64 total = 0;
        for (u32 j = 0; j < ARITY; j++) total += below[(i << ARITY_BITS) + j];
        above[i] = total;
    }
}

// Puts the rows of an update, int64 [m], into `table`, int64 [2 * size]: rows, and the last entry of each that was put
// in; links, int64 [m], lead from each entry to the one put in before it. `table` is all ones (-1) before; size: a power
// of two, twice m at least.
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

// Sets the weights of rows, int64 [m], to values, float64 [m], the last value of one counting, and the nodes of the
// tree of their quanta above them; before[i], float64 [m]: the weight there was before entry i. `table` and `links` as
// gear_put_index left them. change[0:2] = what the quanta changed by (float64), and the number of positive ones.
// levels = 0: there is no tree, and running sums are made anew afterwards.
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
        // Whoever comes last of an episode's does what there is to do once.
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
