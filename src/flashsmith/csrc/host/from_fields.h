// Builds a struct from the values of its fields, which come from Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace flashsmith {

// The values are in the order of the fields, which are numbers, bools and enumerations.
using Fields = std::span<const int64_t>;

// Both throw a ValueError that names the struct. They are not templates, because every family
// would compile those again.
[[noreturn]] void refuse_field(std::string_view type, size_t index, int64_t value);
[[noreturn]] void refuse_count(std::string_view type, size_t given, size_t expected);

// A value that converts to the type of its field, so that no struct's fields are listed again.
struct FieldValue {
  std::string_view type;  // the struct's name
  size_t index;
  int64_t value;

  template <typename Field>
  operator Field() const {
    const auto converted = static_cast<Field>(value);
    if (static_cast<int64_t>(converted) != value) refuse_field(type, index, value);
    return converted;
  }
};

template <typename Struct, size_t... kI>
constexpr bool has_fields(std::index_sequence<kI...>) {
  return requires { Struct{(static_cast<void>(kI), std::declval<FieldValue>())...}; };
}

// Returns the number of fields of a struct: it cannot be initialised from a longer list.
template <typename Struct, size_t kN = 1>
constexpr size_t n_fields() {
  if constexpr (has_fields<Struct>(std::make_index_sequence<kN + 1>{})) {
    return n_fields<Struct, kN + 1>();
  } else {
    return kN;
  }
}

// Throws ValueError for another number of values, or a value that its field cannot hold.
template <typename Struct>
Struct from_fields(std::string_view type, Fields values) {
  constexpr size_t kFields = n_fields<Struct>();
  if (values.size() != kFields) refuse_count(type, values.size(), kFields);
  return [&]<size_t... kI>(std::index_sequence<kI...>) {
    return Struct{FieldValue{type, kI, values[kI]}...};
  }(std::make_index_sequence<kFields>{});
}

}  // namespace flashsmith
