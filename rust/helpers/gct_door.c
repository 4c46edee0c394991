// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The character device /dev/gctgroup, which serves the tree where debugfs cannot.
 * Contracts are in gct_helpers.h.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/user_namespace.h>

#include "gct_helpers.h"

/*
 * The node belongs to root with mode 0600. An administrator may let others read; who
 * opens it for writing needs CAP_SYS_ADMIN as well. Both in the initial user
 * namespace: pids and groups of the whole machine are nobody's business in another
 * one, even where root made it.
 */
static int gct_door_open(struct inode *inode, struct file *file)
{
	if (!gct_helper_is_live())
		return -EAGAIN;
	if (current_user_ns() != &init_user_ns)
		return -EPERM;
	if ((file->f_mode & FMODE_WRITE) && !capable(CAP_SYS_ADMIN))
		return -EPERM;
	return 0;
}

static long gct_door_ioctl(struct file *file, unsigned int command, unsigned long request)
{
	uint32_t rights = 0;

	if (file->f_mode & FMODE_READ)
		rights |= GCT_DOOR_READ;
	if (file->f_mode & FMODE_WRITE)
		rights |= GCT_DOOR_WRITE;
	return gct_door_call(command, request, rights);
}

/*
 * An open device must pin the module. The kernel crate's miscdevice has operations
 * without an owner, so a module that can be unloaded cannot use it.
 */
static const struct file_operations gct_door_fops = {
	.owner = THIS_MODULE,
	.open = gct_door_open,
	.unlocked_ioctl = gct_door_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice gct_door = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gctgroup",
	.fops = &gct_door_fops,
	.mode = 0600,
};

static bool gct_door_exists;

int gct_helper_door_open(void)
{
	int error = misc_register(&gct_door);

	gct_door_exists = !error;
	return error;
}

void gct_helper_door_close(void)
{
	if (gct_door_exists)
		misc_deregister(&gct_door);
	gct_door_exists = false;
}
