/* The floor of a feed: draws windows of steps, and gathers them into the arrays of a batch.
 *
 * The windows and the values are those of gear-data's uniform sampler. Random numbers are Philox4x32-10 (Salmon et al.,
 * SC 2011), made uniform by multiplying and rejecting (Lemire, ACM TOMACS 2019).
 */

#include <stdint.h>
#include <string.h>

#define DOMAIN_UNIFORM 1
#define AHEAD 4
#define MOST_LINES 16

/* All steps, concatenated. A window begins at an anchor: any of an episode's first steps. */
struct steps {
    const float *observations, *actions, *rewards, *returns;
    const uint8_t *terminated;
    const int64_t *starts, *anchors; /* [episodes + 1], the steps and the anchors before each episode */
    const uint32_t *guide;           /* the episode of every 2^shift-th anchor, and of the last one */
    int64_t shift, total, width, action_width; /* total: the number of anchors */
};

struct window {
    int64_t row, first, left; /* the first step among all steps, in its episode, and the steps from it to the episode's end */
};

static uint64_t word(uint64_t seed, uint64_t step, uint32_t slot, uint32_t attempt)
{
    uint32_t c0 = slot, c1 = (uint32_t)step, c2 = (uint32_t)(step >> 32), c3 = DOMAIN_UNIFORM << 24 | attempt;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return (uint64_t)c1 << 32 | c0;
}

static void draw(const struct steps *s, uint64_t seed, uint64_t step, int64_t batch, struct window *windows)
{
    uint64_t bound = (uint64_t)s->total, threshold = (0 - bound) % bound, words[batch];
    for (int64_t i = 0; i < batch; i++)
        words[i] = word(seed, step, (uint32_t)i, 0);
    for (int64_t i = 0; i < batch; i++) {
        unsigned __int128 product = (unsigned __int128)words[i] * bound;
        for (uint32_t attempt = 1; (uint64_t)product < threshold; attempt++)
            product = (unsigned __int128)word(seed, step, (uint32_t)i, attempt) * bound;
        int64_t anchor = (int64_t)(product >> 64);
        int64_t low = s->guide[anchor >> s->shift], high = s->guide[(anchor >> s->shift) + 1];
        while (low < high) {
            int64_t middle = (low + high + 1) >> 1;
            if (s->anchors[middle] <= anchor)
                low = middle;
            else
                high = middle - 1;
        }
        int64_t first = anchor - s->anchors[low], row = s->starts[low] + first;
        windows[i] = (struct window){row, first, s->starts[low + 1] - row};
    }
}

static void fetch(const void *from, int64_t bytes)
{
    int64_t lines = (bytes + 63) / 64;
    for (int64_t i = 0; i < (lines < MOST_LINES ? lines : MOST_LINES); i++)
        __builtin_prefetch((const char *)from + 64 * i);
}

/* Windows of `context` steps, padded on the left: actions by -10, the rest by 0. Returns-to-go are divided by 1000. */
void decision_transformer(const struct steps *s, uint64_t seed, uint64_t step, int64_t batch, int64_t context,
                          float *states, float *actions, float *rewards, float *returns, int64_t *timesteps,
                          float *mask, int64_t *counts)
{
    int64_t width = s->width, action_width = s->action_width;
    struct window windows[batch];
    draw(s, seed, step, batch, windows);
    for (int64_t b = 0; b < batch; b++) {
        if (b + AHEAD < batch) {
            int64_t row = windows[b + AHEAD].row;
            fetch(s->observations + row * width, context * width * 4);
            fetch(s->actions + row * action_width, context * action_width * 4);
            fetch(s->rewards + row, context * 4);
            fetch(s->returns + row, context * 4);
        }
        int64_t row = windows[b].row, count = windows[b].left < context ? windows[b].left : context;
        int64_t head = context - count;
        counts[b] = count;
        memset(states, 0, head * width * 4);
        memcpy(states + head * width, s->observations + row * width, count * width * 4);
        for (int64_t i = 0; i < head * action_width; i++)
            actions[i] = -10;
        memcpy(actions + head * action_width, s->actions + row * action_width, count * action_width * 4);
        memset(rewards, 0, head * 4);
        memcpy(rewards + head, s->rewards + row, count * 4);
        memset(returns, 0, head * 4);
        for (int64_t i = 0; i < count; i++)
            returns[head + i] = (float)(s->returns[row + i] * 0.001);
        memset(timesteps, 0, head * 8);
        for (int64_t i = 0; i < count; i++)
            timesteps[head + i] = windows[b].first + i;
        memset(mask, 0, head * 4);
        for (int64_t i = 0; i < count; i++)
            mask[head + i] = 1;
        states += context * width;
        actions += context * action_width;
        rewards += context;
        returns += context;
        timesteps += context;
        mask += context;
    }
}

/* Single steps, each with the observation after it. A terminal step's next observation is zero. */
void transitions(const struct steps *s, uint64_t seed, uint64_t step, int64_t batch, int64_t context,
                 float *observations, float *actions, float *rewards, uint8_t *terminated, float *next_observations,
                 float *masks, int64_t *counts)
{
    int64_t width = s->width, action_width = s->action_width;
    struct window windows[batch];
    draw(s, seed, step, batch, windows);
    for (int64_t b = 0; b < batch; b++) {
        int64_t row = windows[b].row;
        memcpy(observations + b * width, s->observations + row * width, width * 4);
        memcpy(actions + b * action_width, s->actions + row * action_width, action_width * 4);
        rewards[b] = s->rewards[row];
        terminated[b] = s->terminated[row];
        if (windows[b].left > 1)
            memcpy(next_observations + b * width, s->observations + (row + 1) * width, width * 4);
        else
            memset(next_observations + b * width, 0, width * 4);
        masks[b] = !s->terminated[row];
        counts[b] = context;
    }
}
