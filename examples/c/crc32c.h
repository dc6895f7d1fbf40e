/* CRC-32C (Castagnoli, RFC 3720), of bytes that follow those of `crc`; begin with 0. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
/* As much as the processor has an instruction for: eight bytes at a time; the number of bytes. */
__attribute__((target("sse4.2")))
static size_t crc32c_by_processor(uint32_t *crc, const uint8_t *at, size_t size) {
    uint64_t eight, sum = *crc, count = __builtin_cpu_supports("sse4.2") ? size / 8 * 8 : 0;
    for (size_t n = 0; n < count; n += 8) {
        memcpy(&eight, at + n, 8);
        sum = __builtin_ia32_crc32di(sum, eight);
    }
    *crc = sum;
    return count;
}
#else
#define crc32c_by_processor(crc, at, size) ((size_t)0)
#endif

static uint32_t crc32c(uint32_t crc, const void *bytes, size_t size) {
    static uint32_t table[8][256]; /* eight bytes at a time, on a little-endian machine */
    for (int k = 0; k < 8 && !table[7][255]; k++)
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t one = k ? table[k - 1][n] : n;
            for (int bit = 0; bit < 8; bit++) one = (one >> 1) ^ (one & 1 ? 0x82f63b78u : 0);
            table[k][n] = one;
        }
    crc = ~crc;
    size_t done = crc32c_by_processor(&crc, bytes, size);
    const uint8_t *at = (const uint8_t *)bytes + done;
    for (size -= done; size >= 8; at += 8, size -= 8) {
        uint64_t eight;
        memcpy(&eight, at, 8), eight ^= crc, crc = 0;
        for (int n = 0; n < 8; n++) crc ^= table[7 - n][eight >> 8 * n & 255];
    }
    while (size--) crc = table[0][(crc ^ *at++) & 255] ^ (crc >> 8);
    return ~crc;
}
