// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// A libcuda whose launches go to fake_driver. Built as libcuda.so.1 by programs.rs.

unsigned fake_launch(void);

// Returns the new GP_PUT instead of a status, or 0 if an argument is not what program.rs passes.
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, void *stream, void **arguments, void **extra)
{
	if (f != (void *)1 || gx != 2 || gy != 3 || gz != 4 || bx != 5 || by != 6 || bz != 7 || shared != 8 ||
	    stream != (void *)9 || arguments != (void **)10 || extra != (void **)11)
		return 0;
	return fake_launch();
}
