// Includes all headers: the engine, tensors, all operations, blocks of them and compiled models.
#pragma once

#include <layerzero/block.hpp>
#include <layerzero/compiled.hpp>
#include <layerzero/engine.hpp>
#include <layerzero/error.hpp>
#include <layerzero/kernel.hpp>
#include <layerzero/log.hpp>
#include <layerzero/ops.hpp>
#include <layerzero/serve.hpp>
#include <layerzero/tensor.hpp>
#include <layerzero/text.hpp>
#include <layerzero/tokenizer.hpp>
