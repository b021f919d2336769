#pragma once

namespace atelier {

// For programs that handle buffers of a megabyte again and again: what is freed is kept for the
// next one, up to 64 MiB for each of the allocator's arenas (a few: about one for each thread that
// is busy at once), instead of being given back to the kernel and fetched page by page anew, which
// costs more than all copies of the buffer together. To be called before there are threads.
void KeepFreedMemory();

}  // namespace atelier
