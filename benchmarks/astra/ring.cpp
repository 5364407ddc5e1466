// A ring's all-reduce on the network library of ASTRA-sim that knows contention.
//
//     ring NPUS CHUNK_BYTES GIGABYTES_PER_S LATENCY_NS   ->   simulated ns
//
// Every NPU sends a chunk to the next one, waits for the one of its predecessor, and sends that on,
// 2 (NPUS - 1) times.

#include "common/EventQueue.h"
#include "congestion_aware/Chunk.h"
#include "congestion_aware/Ring.h"
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

using namespace NetworkAnalytical;
using namespace NetworkAnalyticalCongestionAware;

struct Npu {
    int rank;
    int left;
    int npus;
    ChunkSize bytes;
    Topology* topology;
    std::vector<Npu>* all;

    void send();
};

static void arrived(void* const receiver) {
    static_cast<Npu*>(receiver)->send();
}

void Npu::send() {
    if (left == 0) return;
    --left;
    const auto next = (rank + 1) % npus;
    topology->send(
        std::make_unique<Chunk>(bytes, topology->route(rank, next), arrived, &(*all)[next]));
}

int main(const int count, const char* const* const words) {
    if (count != 5) {
        std::cerr << "ring NPUS CHUNK_BYTES GIGABYTES_PER_S LATENCY_NS\n";
        return 2;
    }
    const auto npus = std::atoi(words[1]);
    const auto bytes = static_cast<ChunkSize>(std::atoll(words[2]));
    const auto events = std::make_shared<EventQueue>();
    Topology::set_event_queue(events);
    Ring ring(npus, std::atof(words[3]), std::atof(words[4]), false);
    std::vector<Npu> all;
    for (auto rank = 0; rank < npus; ++rank) {
        all.push_back({rank, 2 * (npus - 1), npus, bytes, &ring, &all});
    }
    for (auto& npu : all) npu.send();
    while (!events->finished()) events->proceed();
    std::cout << events->get_current_time() << std::endl;
    return 0;
}
