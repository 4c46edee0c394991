// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How structures are declared that the driver reads and writes.
//!
//! Each is declared once, by `layouts!`, with the C names of its
//! type and its fields. From that come the Rust type, an assertion about its size,
//! and a C program that asserts the same about NVIDIA's own headers: see
//! [`c_assertions`].

use gct_core::rmapi::nv;
use std::fmt::Write;

/// A field: its name in C, and its position in the Rust type.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in C, possibly of a nested field; empty for padding.
    pub name: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A structure as this crate declares it.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Name of the type in C.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// The fields, in order.
    pub fields: &'static [Field],
}

/// A number as this crate declares it, and its name in C.
pub type Number = (&'static str, u64);

/// A type that the driver may fill with any bytes.
///
/// # Safety
///
/// Every pattern of bits is a value of the type.
pub unsafe trait Plain: Copy + Default {
    /// Name of the type in C; empty for one that has none.
    const NAME: &'static str = "";
}

macro_rules! plain {
    ($($type:ty),*) => {
        // SAFETY: integers have no invalid patterns.
        $(unsafe impl Plain for $type {})*
    };
}

plain!(u8, u16, u32, u64, i16, i32);

// SAFETY: an array has no invalid patterns if its elements have none.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] where [T; N]: Default {}

/// A structure that was declared with `layouts!`.
pub trait Layout: Plain {
    /// The structure's description in C.
    const DESCRIPTION: Description;
}

/// Declares structures: the C name and size of each, and the C name of each field
/// that is not padding.
macro_rules! layouts {
    ($(
        $(#[$note:meta])*
        $name:ident = $c_name:literal, $size:literal {
            $($field:ident: $type:ty $(= $c_field:literal)?,)*
        }
    )*) => {
        $(
            $(#[$note])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }

            const _: () = assert!(size_of::<$name>() == $size);

            const _: () = {
                const fn is_plain<T: $crate::layout::Plain>() {}
                $(is_plain::<$type>();)*
            };

            // SAFETY: all fields are plain, as checked above.
            unsafe impl $crate::layout::Plain for $name {
                const NAME: &'static str = $c_name;
            }

            impl $crate::layout::Layout for $name {
                const DESCRIPTION: $crate::layout::Description = $crate::layout::Description {
                    name: $c_name,
                    size: size_of::<Self>(),
                    fields: &[$($crate::layout::Field {
                        name: concat!($($c_field)?),
                        offset: std::mem::offset_of!(Self, $field),
                        size: size_of::<$type>(),
                    },)*],
                };
            }
        )*
    };
}

pub(crate) use layouts;

/// Returns a C program that compiles only if `headers` agree with `types` and `numbers`.
pub fn c_assertions(headers: &[&str], types: &[Description], numbers: &[Number]) -> String {
    let mut text = String::from("#include <stddef.h>\n");
    // Writing to a string cannot fail.
    let mut line = |line: std::fmt::Arguments| {
        let _ = writeln!(text, "{line}");
    };
    for header in headers {
        line(format_args!("#include <{header}>"));
    }
    for Description { name, size, fields } in types {
        line(format_args!(
            "_Static_assert(sizeof({name}) == {size}, \"{name}\");"
        ));
        for field in fields.iter().filter(|field| !field.name.is_empty()) {
            let (at, offset, size) = (field.name, field.offset, field.size);
            line(format_args!(
                "_Static_assert(offsetof({name}, {at}) == {offset}, \"{name}.{at}\");\n\
                 _Static_assert(sizeof((({name} *)0)->{at}) == {size}, \"size of {name}.{at}\");"
            ));
        }
    }
    for (name, value) in numbers {
        line(format_args!(
            "_Static_assert(({name}) == {value:#x}, \"{name}\");"
        ));
    }
    text
}

/// Returns C assertions of the core's numbers. They go below the headers of [`c_assertions`].
pub fn core_assertions() -> String {
    let number = |(name, value): &nv::Number| {
        format!("_Static_assert(({name}) == {value:#x}, \"{name}\");\n")
    };
    let some = |entry: &nv::Number| format!("#ifdef {}\n{}#endif\n", entry.0, number(entry));
    let structure = |(name, size, fields): &nv::Structure| {
        let size = size
            .map(|size| format!("_Static_assert(sizeof({name}) == {size}, \"size of {name}\");\n"));
        let fields = fields.iter().map(|(field, offset)| {
            format!("_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n")
        });
        size.into_iter().chain(fields).collect::<String>()
    };
    let numbers = nv::NUMBERS.iter().map(number);
    let some = nv::SOME_NUMBERS.iter().map(some);
    let structures = nv::STRUCTURES.iter().map(structure);
    let variants = nv::VARIANTS.iter().map(variant_assertions);
    let most = format!(
        "_Static_assert(sizeof(NV_CHANNEL_ALLOC_PARAMS) <= {}, \"most of a channel\");\n",
        nv::CHANNEL_PARAMS_MOST
    );
    numbers
        .chain(some)
        .chain(structures)
        .chain(variants)
        .chain([most])
        .collect()
}

/// Returns C assertions that a structure has one of its variants' sizes, and has this one's fields
/// if it has this one's size.
fn variant_assertions((name, size, fields): &nv::Structure) -> String {
    let of_name = nv::VARIANTS.iter().filter(|variant| variant.0 == *name);
    let sizes: Vec<String> = of_name
        .filter_map(|variant| variant.1)
        .map(|size| format!("sizeof({name}) == {size}"))
        .collect();
    let size = size.unwrap_or_default();
    let fields = fields.iter().map(|(field, offset)| {
        format!(
            "_Static_assert(sizeof({name}) != {size} || offsetof({name}, {field}) == {offset}, \
             \"{name}.{field}\");\n"
        )
    });
    let sizes = format!(
        "_Static_assert({}, \"size of {name}\");\n",
        sizes.join(" || ")
    );
    std::iter::once(sizes).chain(fields).collect()
}
