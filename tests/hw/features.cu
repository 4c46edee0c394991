// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// Ways to launch that no other program here uses. Each checks that every block ran once and prints how
// many SMs they ran on: nvcc -arch=native -rdc=true features.cu -lcudadevrt -lcuda
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		int status = (int)(call);                                                          \
		if (status != 0) {                                                                 \
			printf("%s: %d\n", #call, status);                                         \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static const int BLOCKS = 528;
static const int SMS = 256;

// What the blocks have left: how many there were, and which SMs they ran on.
struct Seen {
	unsigned long long blocks;
	unsigned int sms[SMS];
};

__device__ void note(Seen *seen)
{
	if (threadIdx.x == 0) {
		unsigned int sm;
		asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
		seen->sms[sm % SMS] = 1;
		// Long enough for the blocks to be spread.
		for (long long end = clock64() + 20000; clock64() < end;)
			;
		atomicAdd(&seen->blocks, 1ull);
	}
}

__global__ void work(Seen *seen) { note(seen); }

static Seen *fresh()
{
	Seen *seen;
	CHECK(cudaMallocManaged(&seen, sizeof(*seen)));
	memset(seen, 0, sizeof(*seen));
	return seen;
}

static int report(const char *what, const Seen *seen, unsigned long long blocks)
{
	CHECK(cudaDeviceSynchronize());
	int sms = 0;
	for (int sm = 0; sm < SMS; sm++)
		sms += seen->sms[sm];
	bool right = seen->blocks == blocks;
	printf("{\"feature\":\"%s\",\"blocks\":%llu,\"expected\":%llu,\"sms\":%d}\n", what, seen->blocks, blocks, sms);
	return right ? 0 : 1;
}

// A kernel launches another.
__global__ void parent(Seen *seen) { work<<<BLOCKS, 64>>>(seen); }

static int dynamic()
{
	Seen *seen = fresh();
	for (int i = 0; i < 20; i++) {
		parent<<<1, 1>>>(seen);
		CHECK(cudaGetLastError());
	}
	return report("dynamic", seen, 20ull * BLOCKS);
}

// A graph of one kernel.
static cudaGraph_t graph_of(void (*kernel)(Seen *), Seen *seen, int blocks, int threads)
{
	cudaGraph_t graph;
	cudaGraphNode_t node;
	cudaKernelNodeParams params = {};
	void *arguments[] = { &seen };
	params.func = (void *)kernel;
	params.gridDim = dim3(blocks);
	params.blockDim = dim3(threads);
	params.kernelParams = arguments;
	CHECK(cudaGraphCreate(&graph, 0));
	CHECK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
	return graph;
}

// A kernel launches a graph.
__device__ cudaGraphExec_t inner;
__global__ void launcher(Seen *) { cudaGraphLaunch(inner, cudaStreamGraphFireAndForget); }

static int device_graph()
{
	Seen *seen = fresh();
	cudaStream_t stream;
	cudaGraphExec_t exec, outer;
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaGraphInstantiate(&exec, graph_of(work, seen, BLOCKS, 64), cudaGraphInstantiateFlagDeviceLaunch));
	CHECK(cudaGraphUpload(exec, stream));
	CHECK(cudaMemcpyToSymbol(inner, &exec, sizeof(exec)));
	CHECK(cudaGraphInstantiate(&outer, graph_of(launcher, seen, 1, 1), 0));
	for (int i = 0; i < 20; i++) {
		CHECK(cudaGraphLaunch(outer, stream));
		CHECK(cudaStreamSynchronize(stream));
	}
	return report("device-graph", seen, 20ull * BLOCKS);
}

// A loop within a graph.
__global__ void again(Seen *seen, cudaGraphConditionalHandle handle, int *left)
{
	cudaGraphSetConditional(handle, --*left > 0);
}

static int conditional()
{
	Seen *seen = fresh();
	int *left;
	cudaGraph_t graph;
	cudaGraphConditionalHandle handle;
	cudaGraphNode_t node;
	CHECK(cudaMallocManaged(&left, sizeof(*left)));
	CHECK(cudaGraphCreate(&graph, 0));
	CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
	cudaGraphNodeParams params = {};
	params.type = cudaGraphNodeTypeConditional;
	params.conditional.handle = handle;
	params.conditional.type = cudaGraphCondTypeWhile;
	params.conditional.size = 1;
#if CUDART_VERSION >= 13000
	CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
#else
	CHECK(cudaGraphAddNode(&node, graph, nullptr, 0, &params));
#endif
	cudaGraph_t body = params.conditional.phGraph_out[0];
	cudaGraphNode_t first, second;
	cudaKernelNodeParams kernel = {};
	void *arguments[] = { &seen };
	kernel.func = (void *)work;
	kernel.gridDim = dim3(BLOCKS);
	kernel.blockDim = dim3(64);
	kernel.kernelParams = arguments;
	CHECK(cudaGraphAddKernelNode(&first, body, nullptr, 0, &kernel));
	void *more[] = { &seen, &handle, &left };
	kernel.func = (void *)again;
	kernel.gridDim = kernel.blockDim = dim3(1);
	kernel.kernelParams = more;
	CHECK(cudaGraphAddKernelNode(&second, body, &first, 1, &kernel));
	cudaGraphExec_t exec;
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 5; i++) {
		*left = 4;
		CHECK(cudaGraphLaunch(exec, 0));
		CHECK(cudaDeviceSynchronize());
	}
	return report("conditional", seen, 20ull * BLOCKS);
}

// Contexts of some SMs each, made and destroyed.
static int green()
{
	Seen *seen = fresh();
	CUdevice device;
	CHECK(cuDeviceGet(&device, 0));
	unsigned long long blocks = 0;
	for (int i = 0; i < 40; i++) {
		CUdevResource all, part, rest;
		unsigned int groups = 1;
		CUdevResourceDesc desc;
		CUgreenCtx context;
		CUstream stream;
		CHECK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
		CHECK(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, 16));
		CHECK(cuDevResourceGenerateDesc(&desc, &part, 1));
		CHECK(cuGreenCtxCreate(&context, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
		CHECK(cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, 0));
		for (int launch = 0; launch < 3; launch++, blocks += BLOCKS)
			work<<<BLOCKS, 64, 0, (cudaStream_t)stream>>>(seen);
		CHECK(cudaGetLastError());
		CHECK(cuStreamSynchronize(stream));
		CHECK(cuStreamDestroy(stream));
		CHECK(cuGreenCtxDestroy(context));
	}
	return report("green", seen, blocks);
}

// Memory of another process.
static int ipc(char **argv)
{
	Seen *seen;
	cudaIpcMemHandle_t handle;
	if (argv[2] != nullptr) {
		for (size_t i = 0; i < sizeof(handle); i++)
			sscanf(argv[2] + 2 * i, "%2hhx", (unsigned char *)&handle + i);
		CHECK(cudaIpcOpenMemHandle((void **)&seen, handle, cudaIpcMemLazyEnablePeerAccess));
		work<<<BLOCKS, 64>>>(seen);
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaIpcCloseMemHandle(seen));
		return 0;
	}
	CHECK(cudaMalloc(&seen, sizeof(*seen)));
	CHECK(cudaMemset(seen, 0, sizeof(*seen)));
	CHECK(cudaIpcGetMemHandle(&handle, seen));
	char hex[2 * sizeof(handle) + 1];
	for (size_t i = 0; i < sizeof(handle); i++)
		sprintf(hex + 2 * i, "%02x", ((unsigned char *)&handle)[i]);
	for (int i = 0; i < 3; i++) {
		work<<<BLOCKS, 64>>>(seen);
		CHECK(cudaDeviceSynchronize());
		pid_t child = fork();
		if (child == 0) {
			execl("/proc/self/exe", "features", "ipc", hex, nullptr);
			_exit(127);
		}
		int status;
		waitpid(child, &status, 0);
		CHECK(status);
	}
	static Seen copy;
	CHECK(cudaMemcpy(&copy, seen, sizeof(copy), cudaMemcpyDefault));
	return report("ipc", &copy, 6ull * BLOCKS);
}

int main(int, char **argv)
{
	const char *name = argv[1] ? argv[1] : "";
	CHECK(cuInit(0));
	CHECK(cudaFree(nullptr));
	if (!strcmp(name, "dynamic"))
		return dynamic();
	if (!strcmp(name, "device-graph"))
		return device_graph();
	if (!strcmp(name, "conditional"))
		return conditional();
	if (!strcmp(name, "green"))
		return green();
	if (!strcmp(name, "ipc"))
		return ipc(argv);
	return 2;
}
