// A user's program: it trains nothing, it shows that the library is found, compiles, links and
// runs.
#include <ATen/ATen.h>
#include <tidemark/checkpoint.h>
#include <tidemark/version.h>

#include <iostream>

int main() {
  auto x = at::ones({2, 3}).requires_grad_();
  auto y = tidemark::checkpoint([](const at::Tensor& t) { return t * t; }, x);
  y.sum().backward();
  std::cout << "tidemark " TIDEMARK_VERSION_STRING << ", gradient\n" << x.grad() << '\n';
  return at::equal(x.grad(), at::full({2, 3}, 2.0)) ? 0 : 1;
}
