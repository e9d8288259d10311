-- Run a command if a key still holds what was read, without a mark.
-- KEYS: the key.
-- ARGV: what it must hold ('-' nothing, '=' and a value); then the command.
-- Answers whether it did, and the command's reply.
local now = redis.call('GET', KEYS[1])
if (now and '=' .. now or '-') ~= ARGV[1] then return {0, false} end
return {1, redis.call(unpack(ARGV, 2))}
