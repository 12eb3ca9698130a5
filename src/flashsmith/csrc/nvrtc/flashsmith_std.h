// The part of the C++ standard library that kernels use, for NVRTC, which has no headers of it.
#pragma once

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define offsetof(type, member) __INTADDR__(&(((type *)0)->member))

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

namespace std {

using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using size_t = decltype(sizeof(0));
using nullptr_t = decltype(nullptr);

template <class T, T v>
struct integral_constant {
  using value_type = T;
  static constexpr T value = v;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool b>
using bool_constant = integral_constant<bool, b>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool, class T, class>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool b, class T, class F>
using conditional_t = typename conditional<b, T, F>::type;

template <class, class>
struct is_same : false_type {};
template <class T>
struct is_same<T, T> : true_type {};
template <class A, class B>
inline constexpr bool is_same_v = is_same<A, B>::value;

template <class>
struct is_const : false_type {};
template <class T>
struct is_const<const T> : true_type {};
template <class T>
inline constexpr bool is_const_v = is_const<T>::value;

template <class T>
inline constexpr bool is_enum_v = __is_enum(T);

template <class A, class B>
concept same_as = is_same_v<A, B> && is_same_v<B, A>;
template <class T>
T &&declval() noexcept;
template <class A, class B>
concept convertible_to = requires { static_cast<B>(declval<A>()); };

template <class>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static float infinity() { return INFINITY; }
  static float quiet_NaN() { return NAN; }
  static constexpr float max() { return 3.402823466e+38f; }
  static constexpr float lowest() { return -max(); }
};

class strong_ordering {
 public:
  constexpr explicit strong_ordering(signed char sign) : sign_(sign) {}
  static const strong_ordering less, equal, equivalent, greater;
  friend constexpr bool operator==(strong_ordering a, nullptr_t) { return a.sign_ == 0; }
  friend constexpr bool operator==(strong_ordering a, strong_ordering b) {
    return a.sign_ == b.sign_;
  }
  friend constexpr bool operator<(strong_ordering a, nullptr_t) { return a.sign_ < 0; }
  friend constexpr bool operator>(strong_ordering a, nullptr_t) { return a.sign_ > 0; }

 private:
  signed char sign_;
};
inline constexpr strong_ordering strong_ordering::less{-1};
inline constexpr strong_ordering strong_ordering::equal{0};
inline constexpr strong_ordering strong_ordering::equivalent{0};
inline constexpr strong_ordering strong_ordering::greater{1};

inline void *memcpy(void *to, const void *from, size_t n) { return ::memcpy(to, from, n); }
inline float exp2(float x) { return ::exp2f(x); }
inline float log2(float x) { return ::log2f(x); }

}  // namespace std
