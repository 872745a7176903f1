// Frames of cameras: YUV to the arrays of a batch.
//
// A frame has H x W pixels, both even: H * W bytes of luma, then H * W / 4 of u, then as many of v.
// `gear_data.video.decoding.yuv` has the same arithmetic. A thread converts 4 adjacent pixels of the frame, counted
// without regard to lines: they are one word of luma, two numbers of u and two of v. So all widths have aligned words.
// This file includes no headers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace {

// Groups of 4 pixels that a thread loads before its first store.
const u32 GROUPS = 4;

// How to make a frame of the batch. slot: the place of its YUV, or -1 for padding. The others are `YuvConversion`.
struct alignas(16) Record {
    int slot, luma_offset, luma, v_red, u_blue, u_green, v_green, unused;
};

// Four values in a row.
template <class Value> struct alignas(sizeof(Value) < 4 ? 4 * sizeof(Value) : 16) Four {
    Value values[4];
};

__device__ u32 limited(int value) { return (u32)min(max(value, 0), 255); }

// Frames [H, W, 3] of bytes.
struct Bytes {
    u32 *target;
    u32 fill;

    // Writes group `group` of 4 pixels of a frame. at: groups before the frame.
    __device__ void put(u64 at, u32, u32 group, const u32 *red, const u32 *green, const u32 *blue) const {
        u32 *words = target + 3 * (at + group);
        words[0] = red[0] | green[0] << 8 | blue[0] << 16 | red[1] << 24;
        words[1] = green[1] | blue[1] << 8 | red[2] << 16 | green[2] << 24;
        words[2] = blue[2] | red[3] << 8 | green[3] << 16 | blue[3] << 24;
    }

    __device__ void pad(u64 at, u32, u32 group) const {
        u32 *words = target + 3 * (at + group), word = fill * 0x01010101u;
        words[0] = words[1] = words[2] = word;
    }
};

// Frames [3, H, W] of values: table[number] stands for a number.
template <class Value> struct Values {
    Four<Value> *target;
    const Value *table;
    Value fill;

    // groups: of a frame.
    __device__ void put(u64 at, u32 groups, u32 group, const u32 *red, const u32 *green, const u32 *blue) const {
        Four<Value> *place = target + 3 * at + group;
        place[0] = {{table[red[0]], table[red[1]], table[red[2]], table[red[3]]}};
        place[groups] = {{table[green[0]], table[green[1]], table[green[2]], table[green[3]]}};
        place[2 * groups] = {{table[blue[0]], table[blue[1]], table[blue[2]], table[blue[3]]}};
    }

    __device__ void pad(u64 at, u32 groups, u32 group) const {
        Four<Value> *place = target + 3 * at + group;
        place[0] = place[groups] = place[2 * groups] = {{fill, fill, fill, fill}};
    }
};

template <class Target>
__device__ void write_frames(
    const Target &target, const u8 *planes, const Record *records, u64 frames, u32 height, u32 width, u64 slot_bytes
) {
    u32 groups = height * width / 4, half = width / 2, stride = blockDim.x;
    u32 pieces = (groups + GROUPS * stride - 1) / (GROUPS * stride);
    for (u64 piece = blockIdx.x; piece < frames * pieces; piece += gridDim.x) {
        u64 frame = piece / pieces, at = frame * groups;
        u32 first = (u32)(piece - frame * pieces) * GROUPS * stride + threadIdx.x;
        Record record = records[frame];
        if (record.slot < 0) {
            for (u32 k = 0, group = first; k < GROUPS && group < groups; k++, group += stride) target.pad(at, groups, group);
            continue;
        }
        const u8 *luma = planes + record.slot * slot_bytes, *u = luma + 4 * groups, *v = u + groups;
        u32 y[GROUPS] = {};
        int us[GROUPS][2] = {}, vs[GROUPS][2] = {};
#pragma unroll
        for (u32 k = 0; k < GROUPS; k++) {
            u32 group = first + k * stride;
            if (group >= groups) continue;
            // Two pairs of pixels. With a width of 4 * n + 2 the second may be in the next line.
            u32 line = 2 * group / half, column = 2 * group - line * half, next = column + 1, next_line = line;
            if (next == half) next = 0, next_line++;
            u32 here = line / 2 * half + column, there = next_line / 2 * half + next;
            y[k] = ((const u32 *)luma)[group];
            us[k][0] = u[here], us[k][1] = u[there];
            vs[k][0] = v[here], vs[k][1] = v[there];
        }
#pragma unroll
        for (u32 k = 0; k < GROUPS; k++) {
            u32 group = first + k * stride, red[4], green[4], blue[4];
            if (group >= groups) continue;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                int bright = ((int)(y[k] >> 8 * i & 255) * 8 - record.luma_offset) * record.luma >> 16;
                int a = us[k][i / 2] * 8 - 1024, b = vs[k][i / 2] * 8 - 1024;
                red[i] = limited(bright + (b * record.v_red >> 16));
                green[i] = limited(bright + (a * record.u_green >> 16) + (b * record.v_green >> 16));
                blue[i] = limited(bright + (a * record.u_blue >> 16));
            }
            target.put(at, groups, group, red, green, blue);
        }
    }
}

// given: [256].
template <class Value>
__device__ void write_values(
    Four<Value> *target, const Value *given, u64 fill, const u8 *planes, const Record *records, u64 frames, u64 height,
    u64 width, u64 slot_bytes
) {
    __shared__ Value table[256];
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) table[i] = given[i];
    __syncthreads();
    write_frames(
        Values<Value>{target, table, (Value)fill}, planes, records, frames, (u32)height, (u32)width, slot_bytes
    );
}

}  // namespace

// Writes frames [frames, H, W, 3] of bytes.
//
// planes: frames as YUV, `slot_bytes` apart, a multiple of 4. records: [frames]. fill: the byte of padding.
extern "C" __global__ void gear_frames(
    u32 *target, u64 fill, const u8 *planes, const Record *records, u64 frames, u64 height, u64 width, u64 slot_bytes
) {
    write_frames(Bytes{target, (u32)fill}, planes, records, frames, (u32)height, (u32)width, slot_bytes);
}

// Writes frames [frames, 3, H, W] of values of 2, 4 or 8 bytes. table: the value of each number. fill: the bits of the
// value of padding.
extern "C" __global__ void gear_frames_2(
    Four<u16> *target, const u16 *table, u64 fill, const u8 *planes, const Record *records, u64 frames, u64 height,
    u64 width, u64 slot_bytes
) {
    write_values(target, table, fill, planes, records, frames, height, width, slot_bytes);
}

extern "C" __global__ void gear_frames_4(
    Four<u32> *target, const u32 *table, u64 fill, const u8 *planes, const Record *records, u64 frames, u64 height,
    u64 width, u64 slot_bytes
) {
    write_values(target, table, fill, planes, records, frames, height, width, slot_bytes);
}

extern "C" __global__ void gear_frames_8(
    Four<u64> *target, const u64 *table, u64 fill, const u8 *planes, const Record *records, u64 frames, u64 height,
    u64 width, u64 slot_bytes
) {
    write_values(target, table, fill, planes, records, frames, height, width, slot_bytes);
}
