-- Answers the time in ms, then queue, id and value of each entry: of one queue, or of one worker. ARGV[3]: "queue" or "worker".
local answer = { in_ms(now) }
local function add(queue, id, value)
  answer[#answer + 1] = queue
  answer[#answer + 1] = id
  answer[#answer + 1] = value
end
if ARGV[3] == 'queue' then
  local found = redis.call('HGETALL', hash_of(ARGV[2]))
  for i = 1, #found, 2 do
    add(ARGV[2], found[i], found[i + 1])
  end
else
  for queue, ids in pairs(indexed(ARGV[2])) do
    for i, value in ipairs(values_of(hash_of(queue), ids)) do
      if value and holder_of(value) == ARGV[2] then
        add(queue, ids[i], value)
      end
    end
  end
end
return answer
