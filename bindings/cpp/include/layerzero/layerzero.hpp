// Includes all headers: the engine, tensors and all operations.
#pragma once

#include <layerzero/engine.hpp>
#include <layerzero/error.hpp>
#include <layerzero/kernel.hpp>
#include <layerzero/log.hpp>
#include <layerzero/ops.hpp>
#include <layerzero/tensor.hpp>
#include <layerzero/tokenizer.hpp>
