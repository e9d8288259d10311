-- Give up a lock on one node.
-- KEYS: lock, gone (of this holder)
-- ARGV: holder;
--       the number of an attempt: this one and all before it are given up;
--       the token to give up ('': none; '*': every token of this holder);
--       ms for which these attempts are refused if they arrive late (0: none can)
-- Answers: 1 if the key was held under that token, else 0.
local holder, last, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local found = 0
local owner, sign, number = string.match(redis.call('GET', KEYS[1]) or '', '^(.*):(%-?)(%d+)$')
if owner == holder then
    if sign == '' and (token == '*' or token == number) then
        found = redis.call('DEL', KEYS[1])
    elseif sign == '-' and tonumber(number) <= last then
        redis.call('DEL', KEYS[1])
    end
end
if ARGV[4] ~= '0' and last > tonumber(redis.call('GET', KEYS[2]) or 0) then
    -- With pcall: a server that is out of memory refuses this, but it has freed the key already.
    redis.pcall('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
end
return found
