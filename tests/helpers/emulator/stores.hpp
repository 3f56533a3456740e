// Boxes that the copy engine takes out of shared memory, for the CPU; and matrices that a warp puts there.
//
// A box is read as late as it may be, when its thread waits for that, and written as late, when it waits for all.
#pragma once

struct BoxStore {
    u64 words[6];  // as in a map: address, rows and columns of an array, rows of a box, bytes of a value, columns of a box
    int column, row;
    bool adds;
    const u8* from;
    std::vector<u8> bytes;
    void read() {
        if (bytes.empty()) bytes.assign(from, from + words[3] * words[4] * words[5]);
    }
    void write() {
        read();
        const i64 size = i64(words[4]), line = i64(words[5]) * size;
        for (i64 r = 0; r < i64(words[3]); r++)
            for (i64 c = 0; c < i64(words[5]); c++) {
                if (row + r >= i64(words[1]) || column + c >= i64(words[2])) continue;
                const i64 plain = r * line + c * size;
                const u8* value = &bytes[plain ^ (plain / 128 % (line / 16)) * 16];
                u8* to = reinterpret_cast<u8*>(words[0]) + ((row + r) * i64(words[2]) + column + c) * size;
                if (adds) *reinterpret_cast<float*>(to) += *reinterpret_cast<const float*>(value);
                else std::memcpy(to, value, size);
            }
    }
};
struct Stores {
    std::vector<BoxStore> open;
    std::vector<std::vector<BoxStore>> groups;
};
OF_BLOCK std::vector<Stores> stores_of(1024);

inline void stores_ready() {}
template <class Map> void issue_store(const Map& map, int column, int row, u32 from, bool adds) {
    BoxStore store{{}, column, row, adds, nullptr, {}};
    std::memcpy(store.words, map.words, sizeof store.words);
    const u32 line = u32(store.words[4] * store.words[5]);
    if (line != 32 && line != 64 && line != 128) fail("a box whose lines have no swizzle");
    if (from % (8 * line)) fail("a swizzled box that begins within its pattern");
    if (adds && store.words[4] != 4) fail("adds what is not float32");
    store.from = shared_at(from, u32(store.words[3]) * line);
    if (block.eager) store.read();
    stores_of[threadIdx.x].open.push_back(std::move(store));
}
template <class Map> void store_box(const Map& map, int column, int row, u32 from) { issue_store(map, column, row, from, false); }
template <class Map> void add_box(const Map& map, int column, int row, u32 from) { issue_store(map, column, row, from, true); }
inline void stores_commit() {
    Stores& own = stores_of[threadIdx.x];
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}
template <int LEFT> void stores_wait_read() {
    auto& groups = stores_of[threadIdx.x].groups;
    for (size_t i = 0; i + LEFT < groups.size(); i++)
        for (BoxStore& store : groups[i]) store.read();
}
inline void stores_wait() {
    for (auto& group : stores_of[threadIdx.x].groups)
        for (BoxStore& store : group) store.write();
    stores_of[threadIdx.x].groups.clear();
}
inline void stores_are_done() {
    if (!stores_of[threadIdx.x].open.empty() || !stores_of[threadIdx.x].groups.empty()) fail("ends with stores in flight");
}

inline void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    struct Given { u32 address, values[4]; } mine{address, {a, b, c, d}};
    meet(my_warp(), my_lane(), &mine, [](void** all) {
        auto of = [&](int lane) { return static_cast<Given*>(all[lane]); };
        for (int lane = 0; lane < 32; lane++)
            for (int matrix = 0; matrix < 4; matrix++)
                std::memcpy(shared_at(of(matrix * 8 + lane / 4)->address, 16) + lane % 4 * 4, &of(lane)->values[matrix], 4);
    });
}
