// Selection on a GPU: the windows of a batch, one thread for each slot. The integers equal the
// results of gear_data.kernels.cpu.windows.
//
// A plan holds addresses that the device can read. Its tables are copied to the device.
// Slots are independent, except in draws without replacement, which one block makes for a batch.
//
// A launch draws for the `batches` batches of consecutive steps, beginning with `step`. It draws the slots `first` to
// `first + count - 1` of each batch, by `blocks` blocks for a batch. The grid is a multiple of `blocks`.
//
// out: int64 [3 or 4, batches, count], receives episode ids, first steps, lengths, and probabilities (float64) if
// `rows` is 4.
//
// The kernels that draw also count the bytes of valid rows that the windows of each batch give. They store one sum for
// each of its blocks, so nobody has to clear memory before, and the sums may lie in memory of the host. Their last
// arguments are the fields of `Counting`.
// This file includes no headers.

typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

namespace {

const u32 LANES = 32, MAX_WARPS = 16, WHOLE = 0xFFFFFFFF;
const u64 NO_SLOT = ~0ULL;
// Ranges of places that gear_order_windows tells apart.
const i64 PLACES = 1024;

// Random domains, see gear_data.kernels.cpu.random.
enum { DOMAIN_FEISTEL = 3, DOMAIN_ANCHOR = 5, DOMAIN_PLACE = 6 };
enum { WITHIN_OFFSET, WITHIN_QUOTIENT, WITHIN_DRAWN };
enum { ANCHOR_START, ANCHOR_END, ANCHOR_RANDOM };
const u32 FEISTEL_ROUNDS = 12;
// After this many rejected repeats a slot draws from the weight that the earlier slots left.
const u32 MAX_REPEATS = 32;
const u32 ARITY_BITS = 4;
const i64 BLOCK_BITS = 512, BLOCK_WORDS = BLOCK_BITS / 64;

// WINDOW_PLAN of gear_data.kernels.window_plan: the same fields in the same order.
struct WindowPlan {
    u64 seed;
    i64 domain, episodes;
    const i64 *total, *prefix;
    const u32 *guide;
    i64 shift;
    const i64 *nodes, *starts;
    i64 levels, find, distinct, within;
    const i64 *counts, *offsets, *ids;
    const u64 *words;
    const i64 *ranks, *first;
    i64 context, stride, origin, anchor, allow_short;
};
static_assert(sizeof(WindowPlan) == 24 * sizeof(i64), "a plan");

// A record of `row_groups` of gear_data.kernels.cuda.launch_arguments: outputs that have the same rows. next: the rows
// are of next steps. finals: they may end with a final observation. whole: every row counts.
struct RowGroup {
    i64 first, width, within, next, finals, whole, bytes;
};

// lengths, finals: [episodes], see gear_collect. groups: [group_count]; 0: nothing is counted. sums: [batches, blocks].
struct Counting {
    const RowGroup *groups;
    i64 group_count;
    const i64 *lengths, *finals;
    u64 *sums;
};

// Where the windows of one batch go. out: of the batch's first window. apart: numbers between two rows of `out`.
struct Target {
    i64 *out, apart, rows;
};

__device__ i64 thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ i64 thread_count() { return (i64)gridDim.x * blockDim.x; }
// This thread among the threads of its batch, the first batch of its block, and the batches that are drawn at once.
__device__ i64 thread_of_batch(i64 blocks) { return blockIdx.x % blocks * blockDim.x + threadIdx.x; }
__device__ i64 first_batch(i64 blocks) { return blockIdx.x / blocks; }
__device__ i64 batches_at_once(i64 blocks) { return gridDim.x / blocks; }

// Random numbers: Philox4x32-10, as in gear_data.kernels.cpu.random

__device__ void philox(u32 c[4], u32 k0, u32 k1) {
    for (u32 round = 0; round < 10; round++) {
        u64 p0 = (u64)0xD2511F53 * c[0], p1 = (u64)0xCD9E8D57 * c[2];
        c[0] = (u32)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (u32)p1;
        c[2] = (u32)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (u32)p0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
}

__device__ u64 word64(u64 seed, i64 domain, i64 step, i64 slot, u32 attempt) {
    u32 c[4] = {(u32)slot, (u32)step, (u32)((u64)step >> 32), (u32)domain << 24 | attempt};
    philox(c, (u32)seed, (u32)(seed >> 32));
    return (u64)c[1] << 32 | c[0];
}

// Lemire's multiply and reject. `number` receives a number below `bound`. Returns whether it is accepted.
__device__ bool accepted(u64 word, u64 bound, i64 &number) {
    u64 low = word * bound;
    number = (i64)__umul64hi(word, bound);
    return low >= bound || low >= (0 - bound) % bound;
}

__device__ i64 below(u64 seed, i64 domain, i64 step, i64 slot, i64 bound) {
    i64 number;
    for (u32 attempt = 0; !accepted(word64(seed, domain, step, slot, attempt), (u64)bound, number); attempt++) {
    }
    return number;
}

// Tables

__device__ void find_in_tree(const WindowPlan &plan, i64 point, i64 &episode, i64 &rest) {
    i64 node = 0;
    for (i64 level = plan.levels - 2; level >= 0; level--) {
        const i64 *nodes = plan.nodes + plan.starts[level];
        for (node <<= ARITY_BITS; point >= nodes[node]; node++) point -= nodes[node];
    }
    episode = node, rest = point;
}

// Finds the episode of a point, and the point's offset in the episode's interval.
__device__ void find(const WindowPlan &plan, i64 point, i64 &episode, i64 &rest) {
    if (plan.nodes) {
        find_in_tree(plan, point, episode, rest);
        return;
    }
    i64 low = plan.guide[point >> plan.shift], high = plan.guide[(point >> plan.shift) + 1];
    while (low < high) {
        i64 middle = (low + high + 1) >> 1;
        if (plan.prefix[middle] <= point) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    episode = low, rest = point - plan.prefix[low];
}

__device__ i64 int_weight_of(const WindowPlan &plan, i64 episode) {
    return plan.nodes ? plan.nodes[episode] : plan.prefix[episode + 1] - plan.prefix[episode];
}

// Returns the number of set bits before `place`.
__device__ i64 rank(const WindowPlan &plan, i64 place) {
    i64 block = place / BLOCK_BITS, count = plan.ranks[block];
    for (i64 word = block * BLOCK_WORDS; word < place >> 6; word++) count += __popcll(plan.words[word]);
    if (place & 63) count += __popcll(plan.words[place >> 6] << (64 - (place & 63)));
    return count;
}

// Returns the place of set bit `number` of the whole mask. The caller knows that it lies in [first, last).
__device__ i64 select(const WindowPlan &plan, i64 first, i64 last, i64 number) {
    i64 low = first / BLOCK_BITS, high = (last - 1) / BLOCK_BITS;
    while (low < high) {
        i64 middle = (low + high + 1) >> 1;
        if (plan.ranks[middle] <= number) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    i64 left = number - plan.ranks[low], word = low * BLOCK_WORDS;
    for (i64 count; left >= (count = __popcll(plan.words[word])); word++) left -= count;
    u64 value = plan.words[word];
    for (; left; left--) value &= value - 1;
    return (word << 6) + __popcll((value & (0 - value)) - 1);
}

// Writes window `place` of a batch, given its slot, the episode and the point's offset in the episode's interval.
__device__ void finish(const WindowPlan &plan, i64 step, i64 slot, i64 episode, i64 rest, const Target &target,
                       i64 place) {
    i64 begin = plan.offsets[episode], length = plan.offsets[episode + 1] - begin, number = rest;
    if (plan.within != WITHIN_OFFSET) {
        i64 int_weight = int_weight_of(plan, episode), anchors = plan.counts[episode + 1] - plan.counts[episode];
        number = plan.within == WITHIN_QUOTIENT ? rest / (int_weight / anchors)
                                                : below(plan.seed, DOMAIN_ANCHOR, step, slot, anchors);
        if (target.rows > 3) {
            ((double *)target.out)[3 * target.apart + place] = (double)int_weight / (double)*plan.total / (double)anchors;
        }
    }
    i64 anchor = plan.origin + number * plan.stride;
    if (plan.words) {
        i64 first = plan.first[episode];
        anchor = select(plan, first, first + length, rank(plan, first) + number) - first;
    }
    i64 start = anchor, taken = min(plan.context, length - anchor);
    if (plan.anchor == ANCHOR_END) {
        start = max(0LL, anchor + 1 - plan.context);
        taken = anchor + 1 - start;
    } else if (plan.anchor == ANCHOR_RANDOM) {
        i64 begin_at = anchor - below(plan.seed, DOMAIN_PLACE, step, slot, plan.context);
        start = plan.allow_short ? max(0LL, begin_at) : min(max(0LL, begin_at), length - plan.context);
        taken = plan.allow_short ? min(length, begin_at + plan.context) - start : plan.context;
    }
    target.out[place] = plan.ids ? plan.ids[episode] : episode;
    target.out[target.apart + place] = start;
    target.out[2 * target.apart + place] = taken;
}

__device__ i64 warp_sum(i64 value) {
    for (u32 apart = LANES / 2; apart; apart /= 2) value += __shfl_xor_sync(WHOLE, value, apart);
    return value;
}

// Returns the bytes of valid rows of a window that is finished.
__device__ u64 valid_bytes(const Counting &counting, const Target &target, i64 place) {
    if (!counting.groups) return 0;
    i64 episode = target.out[place], start = target.out[target.apart + place];
    i64 length = target.out[2 * target.apart + place], total = counting.lengths[episode];
    u64 bytes = 0;
    for (i64 i = 0; i < counting.group_count; i++) {
        const RowGroup &group = counting.groups[i];
        i64 wanted = start + group.first, first = group.within ? max(wanted, start) : max(wanted, 0LL);
        i64 last = min(wanted + group.width, group.within ? start + length : total);
        i64 missing = group.next && last == total && !(group.finals && counting.finals[episode] >= 0);
        bytes += (u64)(group.whole ? group.width : max(last - first - missing, 0LL)) * (u64)group.bytes;
    }
    return bytes;
}

// Stores the sum of a block's numbers of a batch. All threads of the block call this.
__device__ void store_sum(const Counting &counting, i64 batch, i64 blocks, u64 bytes) {
    __shared__ u64 sums[MAX_WARPS];
    if (!counting.groups) return;
    i64 sum = warp_sum((i64)bytes);
    if (threadIdx.x % LANES == 0) sums[threadIdx.x / LANES] = (u64)sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < blockDim.x / LANES; warp++) sum += (i64)sums[warp];
        counting.sums[batch * blocks + blockIdx.x % blocks] = (u64)sum;
    }
    __syncthreads();  // the next batch writes to the same memory
}

// Draws without replacement. A hash table holds the episodes, and the first slot that drew each episode.

struct Holders {
    u64 *episodes, *slots;
    u64 mask;

    __device__ u64 place(i64 episode) const { return ((u64)episode * 0x9E3779B97F4A7C15ULL >> 20) & mask; }

    // Returns the entry that holds the episode, or that is free for it.
    __device__ u64 find(i64 episode) const {
        u64 at = place(episode);
        while (episodes[at] != NO_SLOT && episodes[at] != (u64)episode) at = (at + 1) & mask;
        return at;
    }

    __device__ void offer(i64 episode, i64 slot) const {
        for (u64 at = place(episode);; at = (at + 1) & mask) {
            u64 there = atomicCAS(episodes + at, NO_SLOT, (u64)episode);
            if (there != NO_SLOT && there != (u64)episode) continue;
            atomicMin(slots + at, (u64)slot);
            return;
        }
    }

    // Returns the slot that holds the episode. NO_SLOT is larger than every slot.
    __device__ u64 of(i64 episode) const { return slots[find(episode)]; }
};

__device__ void take(const Holders &holders, i64 *out, i64 count, i64 slot, i64 episode, i64 point, i64 rest) {
    u64 at = holders.find(episode);
    holders.episodes[at] = (u64)episode, holders.slots[at] = (u64)slot;
    out[slot] = episode, out[count + slot] = point, out[2 * count + slot] = rest;
}

// Draws a slot again, by a whole warp with one attempt for each lane. All earlier slots must be final.
__device__ void draw_again(const WindowPlan &plan, const Holders &holders, i64 step, i64 *out, i64 count, i64 slot,
                           u32 lane) {
    u32 attempt = 0, repeats = 0;
    i64 total = *plan.total, point, episode, rest;
    while (repeats < MAX_REPEATS) {
        bool counts = accepted(word64(plan.seed, plan.domain, step, slot, attempt + lane), (u64)total, point);
        find(plan, point, episode, rest);
        bool repeat = counts && holders.of(episode) < (u64)slot;
        u32 free = __ballot_sync(WHOLE, counts && !repeat), taken = __ballot_sync(WHOLE, repeat);
        // Keeps only the repeats before the first free episode.
        if (free) taken &= (free & (0 - free)) - 1;
        if (repeats + (u32)__popc(taken) >= MAX_REPEATS) {
            for (; repeats + 1 < MAX_REPEATS; repeats++) taken &= taken - 1;
            attempt += (u32)__ffs((int)taken), repeats++;
            break;
        }
        if (free) {
            if (lane + 1 == (u32)__ffs((int)free)) take(holders, out, count, slot, episode, point, rest);
            __syncwarp();
            return;
        }
        repeats += (u32)__popc(taken), attempt += LANES;
    }
    // Draws from the free points, laid end to end.
    i64 held = 0;
    for (i64 i = lane; i < slot; i += LANES) held += int_weight_of(plan, out[i]);
    i64 bound = total - warp_sum(held);
    u32 free;
    do {
        free = __ballot_sync(
            WHOLE, accepted(word64(plan.seed, plan.domain, step, slot, attempt + lane), (u64)bound, point));
        attempt += LANES;
    } while (!free);
    i64 among = __shfl_sync(WHOLE, point, __ffs((int)free) - 1), before = -1;
    // Moves the point past all taken intervals that begin before it.
    for (point = among; point != before;) {
        before = point, held = 0;
        for (i64 i = lane; i < slot; i += LANES) {
            if (out[count + i] - out[2 * count + i] <= before) held += int_weight_of(plan, out[i]);
        }
        point = among + warp_sum(held);
    }
    find(plan, point, episode, rest);
    __syncwarp();
    if (lane == 0) take(holders, out, count, slot, episode, point, rest);
    __syncwarp();
}

// Orders

// SplitMix64's finalizer.
__device__ u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    return z ^ z >> 31;
}

__device__ void round_keys(u64 seed, i64 epoch, u64 keys[FEISTEL_ROUNDS]) {
    for (u32 round = 0; round < FEISTEL_ROUNDS; round++) keys[round] = word64(seed, DOMAIN_FEISTEL, epoch, round, 0);
}

// Returns the image of a number under an epoch's permutation of 0..size-1, a Feistel network.
__device__ u64 image(const u64 keys[FEISTEL_ROUNDS], u64 size, u64 value) {
    u32 bits = 1;
    while (1ULL << bits < size) bits++;
    u32 small = bits / 2, large = bits - small;
    do {
        u32 left_bits = large, right_bits = small;
        u64 left = value >> small, right = value & ((1ULL << small) - 1);
        for (u32 round = 0; round < FEISTEL_ROUNDS; round++) {
            u64 mixed = left ^ (mix(right ^ keys[round]) & ((1ULL << left_bits) - 1));
            left = right, right = mixed;
            u32 bits_there = left_bits;
            left_bits = right_bits, right_bits = bits_there;
        }
        value = left << right_bits | right;
    } while (value >= size);
    return value;
}

// Returns the range, of PLACES ranges of all places, that a place lies in.
__device__ i64 range_of(i64 place, i64 total) { return place * PLACES / total; }

}  // namespace

// out = four words of Philox4x32-10 for each of `count` counters and keys, uint32 [count, 6].
extern "C" __global__ void gear_philox(const u32 *inputs, u32 *out, i64 count) {
    for (i64 i = thread(); i < count; i += thread_count()) {
        u32 c[4];
        for (u32 j = 0; j < 4; j++) c[j] = inputs[6 * i + j];
        philox(c, inputs[6 * i + 4], inputs[6 * i + 5]);
        for (u32 j = 0; j < 4; j++) out[4 * i + j] = c[j];
    }
}

// Draws windows with replacement.
extern "C" __global__ void gear_draw_windows(const WindowPlan *plan, i64 step, i64 batches, i64 blocks, i64 first,
                                             i64 *out, i64 count, i64 rows, const RowGroup *groups, i64 group_count,
                                             const i64 *lengths, const i64 *finals, u64 *sums) {
    Counting counting = {groups, group_count, lengths, finals, sums};
    for (i64 batch = first_batch(blocks); batch < batches; batch += batches_at_once(blocks)) {
        Target target = {out + batch * count, batches * count, rows};
        u64 bytes = 0;
        for (i64 place = thread_of_batch(blocks); place < count; place += blocks * blockDim.x) {
            i64 slot = first + place, episode, rest;
            i64 point = below(plan->seed, plan->domain, step + batch, slot, *plan->total);
            find(*plan, point, episode, rest);
            finish(*plan, step + batch, slot, episode, rest, target, place);
            bytes += valid_bytes(counting, target, place);
        }
        store_sum(counting, batch, blocks, bytes);
    }
}

// Draws windows, no episode twice in a batch. One block for a batch, of any number of warps. slots: of a whole batch.
// work: [batches, 3 * slots + 2 * size], working memory; size: a power of two, at least 4 * slots.
//
// The result equals a loop over all slots in order. A slot keeps its episode if no earlier slot has the episode. So the
// kernel draws again only for the other slots, and for the slots that lose their episode to a new draw of an earlier
// slot. `drawn` holds the slots' episodes, points, and offsets of the points in the episodes' intervals.
extern "C" __global__ void gear_draw_distinct(const WindowPlan *plan, i64 step, i64 batches, i64 first, i64 *out,
                                              i64 count, i64 rows, i64 slots, i64 *work, i64 size,
                                              const RowGroup *groups, i64 group_count, const i64 *lengths,
                                              const i64 *finals, u64 *sums) {
    Counting counting = {groups, group_count, lengths, finals, sums};
    for (i64 batch = blockIdx.x; batch < batches; batch += gridDim.x) {
        i64 *drawn = work + batch * (3 * slots + 2 * size);
        u64 *table = (u64 *)(drawn + 3 * slots);
        Holders holders = {table, table + size, (u64)size - 1};
        for (i64 i = threadIdx.x; i < 2 * size; i += blockDim.x) table[i] = NO_SLOT;
        for (i64 slot = threadIdx.x; slot < slots; slot += blockDim.x) {
            i64 point = below(plan->seed, plan->domain, step + batch, slot, *plan->total), episode, rest;
            find(*plan, point, episode, rest);
            drawn[slot] = episode, drawn[slots + slot] = point, drawn[2 * slots + slot] = rest;
        }
        __syncthreads();
        for (i64 slot = threadIdx.x; slot < slots; slot += blockDim.x) holders.offer(drawn[slot], slot);
        __syncthreads();
        u32 lane = threadIdx.x;
        for (i64 begin = 0; lane < LANES && begin < slots;) {
            i64 slot = begin + lane;
            u32 beaten = __ballot_sync(WHOLE, slot < slots && holders.of(drawn[slot]) != (u64)slot);
            if (beaten) {
                draw_again(*plan, holders, step + batch, drawn, slots, begin + __ffs((int)beaten) - 1, lane);
            } else {
                begin += LANES;
            }
        }
        __syncthreads();
        Target target = {out + batch * count, batches * count, rows};
        u64 bytes = 0;
        for (i64 place = threadIdx.x; place < count; place += blockDim.x) {
            i64 slot = first + place;
            finish(*plan, step + batch, slot, drawn[slot], drawn[2 * slots + slot], target, place);
            bytes += valid_bytes(counting, target, place);
        }
        store_sum(counting, batch, 1, bytes);
    }
}

// Finds windows whose points are in the order of an epoch.
//
// position: points before slot 0 of the first batch, counted over all epochs. slots: of a whole batch. total: points of
// an epoch. permuted: whether an epoch's points are permuted, by `seed`; else they are in the order of the dataset.
extern "C" __global__ void gear_draw_in_order(const WindowPlan *plan, i64 step, i64 batches, i64 blocks, i64 first,
                                              i64 *out, i64 count, i64 slots, i64 position, i64 total, i64 permuted,
                                              u64 seed, const RowGroup *groups, i64 group_count, const i64 *lengths,
                                              const i64 *finals, u64 *sums) {
    Counting counting = {groups, group_count, lengths, finals, sums};
    u64 keys[FEISTEL_ROUNDS];
    i64 keyed = -1;
    for (i64 batch = first_batch(blocks); batch < batches; batch += batches_at_once(blocks)) {
        Target target = {out + batch * count, batches * count, 3};
        u64 bytes = 0;
        for (i64 place = thread_of_batch(blocks); place < count; place += blocks * blockDim.x) {
            i64 slot = first + place, number = position + batch * slots + slot;
            i64 epoch = number / total, point = number % total, episode, rest;
            if (permuted) {
                if (epoch != keyed) round_keys(seed, epoch, keys);
                keyed = epoch;
                point = (i64)image(keys, (u64)total, (u64)point);
            }
            find(*plan, point, episode, rest);
            finish(*plan, step + batch, slot, episode, rest, target, place);
            bytes += valid_bytes(counting, target, place);
        }
        store_sum(counting, batch, blocks, bytes);
    }
}

// order = the windows in the order of their places, so that windows that run at the same time read the same pages. Windows
// whose places are close may have any order. One block. places: [episodes], the steps of the dataset before each episode,
// in the order of addresses. total: all steps.
extern "C" __global__ void gear_order_windows(const i64 *episode, const i64 *start, i64 count, const i64 *places,
                                              i64 total, i64 *order) {
    __shared__ u32 next[PLACES];
    for (u32 i = threadIdx.x; i < PLACES; i += blockDim.x) next[i] = 0;
    __syncthreads();
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(next + range_of(places[episode[i]] + start[i], total), 1U);
    __syncthreads();
    // Each lane of one warp turns the counts of its buckets into first turns.
    if (threadIdx.x < LANES) {
        u32 *own = next + threadIdx.x * (PLACES / LANES), sum = 0;
        for (u32 i = 0; i < PLACES / LANES; i++) sum += own[i];
        u32 before = sum;
        for (u32 apart = 1; apart < LANES; apart *= 2) {
            u32 below_it = __shfl_up_sync(WHOLE, before, apart);
            if (threadIdx.x >= apart) before += below_it;
        }
        before -= sum;
        for (u32 i = 0; i < PLACES / LANES; i++) {
            u32 here = own[i];
            own[i] = before;
            before += here;
        }
    }
    __syncthreads();
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) order[atomicAdd(next + range_of(places[episode[i]] + start[i], total), 1U)] = i;
}

// out[i] = first + i: an epoch in the order of the dataset.
extern "C" __global__ void gear_in_order(i64 first, i64 *out, i64 count) {
    for (i64 i = thread(); i < count; i += thread_count()) out[i] = first + i;
}

// out[i] = the image of first + i under an epoch's permutation of 0..size-1.
extern "C" __global__ void gear_permuted(u64 seed, i64 epoch, i64 first, u64 size, i64 *out, i64 count) {
    u64 keys[FEISTEL_ROUNDS];
    round_keys(seed, epoch, keys);
    for (i64 i = thread(); i < count; i += thread_count()) out[i] = (i64)image(keys, size, (u64)(first + i));
}
