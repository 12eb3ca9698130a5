#include "host/launch_cache/launch_cache.h"

#include <memory>

#include "host/launch_cache/known.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

struct Caches {
  KnownLaunchers attend, decode, backward;
};

using Make = int64_t (*)(const KnownLaunchers &, PackedArgs);
using Remember = void (*)(KnownLaunchers &, PackedArgs);

// Returns a function of one of the caches, which lives as long as any of them.
Function function_of(std::shared_ptr<KnownLaunchers> known, Make make) {
  return Function::FromPacked([known = std::move(known), make](PackedArgs arguments, Any *answer) {
    *answer = make(*known, arguments);
  });
}

Function function_of(std::shared_ptr<KnownLaunchers> known, Remember remember) {
  return Function::FromPacked([known = std::move(known), remember](PackedArgs arguments, Any *) {
    remember(*known, arguments);
  });
}

}  // namespace

Functions make_launch_cache() {
  const auto caches = std::make_shared<Caches>();
  const auto of = [&](KnownLaunchers Caches::*which) {
    return std::shared_ptr<KnownLaunchers>(caches, &(caches.get()->*which));
  };
  const auto forget = [caches](PackedArgs, Any *) {
    caches->attend.forget();
    caches->decode.forget();
    caches->backward.forget();
  };
  const auto drop_thread = [caches](PackedArgs arguments, Any *) {
    const auto thread = arguments[0].cast<int64_t>();
    caches->attend.drop_thread(thread);
    caches->decode.drop_thread(thread);
  };
  const auto thread = [](PackedArgs, Any *answer) { *answer = this_thread(); };
  return {{"attend", function_of(of(&Caches::attend), attend)},
          {"remember_attend", function_of(of(&Caches::attend), remember_attend)},
          {"decode", function_of(of(&Caches::decode), decode)},
          {"remember_decode", function_of(of(&Caches::decode), remember_decode)},
          {"backward", function_of(of(&Caches::backward), backward)},
          {"remember_backward", function_of(of(&Caches::backward), remember_backward)},
          {"forget", Function::FromPacked(forget)},
          {"this_thread", Function::FromPacked(thread)},
          {"drop_thread", Function::FromPacked(drop_thread)}};
}

}  // namespace flashsmith
