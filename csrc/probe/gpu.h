// The probe on a GPU, without PyTorch. All that the probe allocates from then on is memory of the host that the GPU reads
// and writes, too, at the same address; and each kernel is waited for. So a family knows nothing of it.
#pragma once

namespace es::probe {

// Runs kernels of CUDA on the first GPU from now on.
//
// `manifest`: a file with a line for each kernel: file of csrc/cuda, path of its machine code, name, what it is called there;
// between tabs. Throws std::runtime_error: the driver refuses something.
void use_gpu(const char* manifest);

}
