// What the model of a GPU takes from the C++ library: the same for every kernel, so `emulate.py` compiles it ahead.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>
