// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// Plays Unix sockets for libcuda on a kernel without them (LD_PRELOAD): cuInit fails where it
// cannot listen on "cuda-uvmfd-PID", by which CUDA IPC passes the file of nvidia-uvm. Nobody
// connects here, and a connection to a daemon of MPS is refused.
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
	return eventfd(0, type & SOCK_CLOEXEC ? EFD_CLOEXEC : 0);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
	return 0;
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	return 0;
}

int listen(int fd, int backlog)
{
	return 0;
}

int connect(int fd, const struct sockaddr *address, socklen_t size)
{
	errno = ECONNREFUSED;
	return -1;
}
